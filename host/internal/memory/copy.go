package memory

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Copy copies the data of a sparse file: as a reflink (FICLONE) where the file system supports it, else extent by extent.
func Copy(args []string) error {
	return withFiles(args, func(source, target *os.File) error {
		if unix.IoctlFileClone(int(target.Fd()), int(source.Fd())) == nil {
			return nil
		}
		if err := matchSize(source, target); err != nil {
			return err
		}
		return EachExtent(source, func(start, end int64) error { return copyExtent(source, target, start, end) })
	})
}

// Compact copies the data of a file without pages that are zero.
func Compact(args []string) error {
	return withFiles(args, func(source, target *os.File) error {
		if err := matchSize(source, target); err != nil {
			return err
		}
		zero := make([]byte, pageBytes)
		return EachExtent(source, func(start, end int64) error {
			return eachChunk(source, start, end, func(chunk []byte, at int64) error {
				for page := 0; page < len(chunk); page += pageBytes {
					part := chunk[page:min(page+pageBytes, len(chunk))]
					if bytes.Equal(part, zero[:len(part)]) {
						continue
					}
					if _, err := target.WriteAt(part, at+int64(page)); err != nil {
						return err
					}
				}
				return nil
			})
		})
	})
}

// Fill copies the data of the file at source to the holes of target.
func Fill(target *os.File, source string) error {
	file, err := os.Open(source)
	if err != nil {
		return err
	}
	defer file.Close()
	return EachExtent(file, func(start, end int64) error {
		for start < end {
			hole, err := unix.Seek(int(target.Fd()), start, unix.SEEK_HOLE)
			if err != nil {
				return fmt.Errorf("the memory is smaller than %s: %w", source, err)
			}
			if hole >= end {
				return nil
			}
			data, err := unix.Seek(int(target.Fd()), hole, unix.SEEK_DATA)
			if errors.Is(err, unix.ENXIO) || data > end {
				data = end
			} else if err != nil {
				return err
			}
			if err := copyBytes(file, target, hole, data); err != nil {
				return err
			}
			start = data
		}
		return nil
	})
}

func withFiles(args []string, work func(source, target *os.File) error) error {
	if len(args) != 2 {
		return errors.New("usage: hostd copy|compact SOURCE TARGET")
	}
	source, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(args[1], os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := work(source, target); err != nil {
		target.Close()
		return err
	}
	return target.Close()
}

func matchSize(source, target *os.File) error {
	info, err := source.Stat()
	if err != nil {
		return err
	}
	return target.Truncate(info.Size())
}

// EachExtent calls work with the bounds of each data extent of a file.
func EachExtent(file *os.File, work func(start, end int64) error) error {
	for end := int64(0); ; {
		start, err := unix.Seek(int(file.Fd()), end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		if end, err = unix.Seek(int(file.Fd()), start, unix.SEEK_HOLE); err != nil {
			return err
		}
		if err := work(start, end); err != nil {
			return err
		}
	}
}

// copyExtent copies inside the kernel where it can (copy_file_range(2)).
func copyExtent(source, target *os.File, start, end int64) error {
	for start < end {
		from, to := start, start
		count, err := unix.CopyFileRange(int(source.Fd()), &from, int(target.Fd()), &to, int(end-start), 0)
		if err != nil || count <= 0 {
			return copyBytes(source, target, start, end)
		}
		start += int64(count)
	}
	return nil
}

func copyBytes(source, target *os.File, start, end int64) error {
	return eachChunk(source, start, end, func(chunk []byte, at int64) error {
		_, err := target.WriteAt(chunk, at)
		return err
	})
}

// eachChunk reads a part of a file. The buffer is valid until work returns.
func eachChunk(source *os.File, start, end int64, work func(chunk []byte, at int64) error) error {
	buffer := make([]byte, chunkBytes)
	for start < end {
		chunk := buffer[:min(int64(chunkBytes), end-start)]
		if _, err := source.ReadAt(chunk, start); errors.Is(err, io.EOF) {
			return fmt.Errorf("%s ended early", source.Name())
		} else if err != nil {
			return err
		}
		if err := work(chunk, start); err != nil {
			return err
		}
		start += int64(len(chunk))
	}
	return nil
}
