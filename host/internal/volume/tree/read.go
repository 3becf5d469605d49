package tree

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

// NextData gives the bounds of the data at or after a position of an open file, up to size.
func NextData(fd int, at, size uint64) (data, hole uint64, err error) {
	const small = 16 * 1024
	if size <= small {
		return at, size, nil
	}
	start, err := unix.Seek(fd, int64(at), unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return size, size, nil
	}
	if errors.Is(err, unix.EINVAL) {
		return at, size, nil
	}
	if err != nil {
		return 0, 0, err
	}
	end, err := unix.Seek(fd, start, unix.SEEK_HOLE)
	if errors.Is(err, unix.ENXIO) { // truncated meanwhile
		return size, size, nil
	}
	if err != nil {
		return 0, 0, err
	}
	if uint64(end) > size {
		end = int64(size)
	}
	return uint64(start), uint64(end), nil
}

// ReadAt fills data. io.EOF says that the file ends before.
func ReadAt(fd int, data []byte, at uint64) error {
	for len(data) > 0 {
		n, err := unix.Pread(fd, data, int64(at))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.EOF
		}
		data, at = data[n:], at+uint64(n)
	}
	return nil
}
