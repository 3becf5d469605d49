package files

import (
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"

	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
	"releap/guest/internal/session"
	"releap/guest/internal/wire"
)

// Read sends a file's bytes from offset on, at most length of them (negative: all), then {bytes}.
func Read(stream *session.Stream, p string, offset, length int64) error {
	file, err := os.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO must not block the agent
	if err != nil {
		return failed(p, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return failed(p, err)
	}
	if info.IsDir() {
		return fault.New(fault.IsDirectory, p+": is a directory")
	}
	if !info.Mode().IsRegular() {
		return fault.New(fault.Invalid, p+": is a "+kindOf(info.Mode())+", only regular files can be read")
	}
	if offset > 0 {
		if _, err := file.Seek(offset, io.SeekStart); err != nil {
			return failed(p, err)
		}
	}
	buf := make([]byte, 32*1024)
	var total int64
	for length < 0 || total < length {
		credit := stream.Credit(wire.Stdout, nil)
		if credit == 0 {
			return session.ErrClosed
		}
		if length >= 0 && int64(credit) > length-total {
			credit = int(length - total)
		}
		n, err := file.Read(buf[:credit])
		if n > 0 {
			stream.Put(wire.Stdout, buf[:n])
			total += int64(n)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return failed(p, err)
		}
	}
	stream.End(wire.Stdout)
	var w jsonlite.Writer
	stream.Result(w.Open('{').Key("bytes").Int(total).Close('}'))
	return nil
}

var serial int64

// pathOnly opens a folder only to work in it (O_PATH).
const pathOnly = 0x200000 | syscall.O_DIRECTORY | syscall.O_CLOEXEC

// openTemporary creates a file in an opened folder.
func openTemporary(dir int) (name string, file *os.File, err error) {
	for {
		name = ".releap-" + strconv.FormatInt(atomic.AddInt64(&serial, 1), 36) + "-" + strconv.Itoa(os.Getpid()) + ".tmp"
		fd, err := syscall.Openat(dir, name, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0o600)
		if err == nil {
			return name, os.NewFile(uintptr(fd), name), nil
		}
		if err != syscall.EEXIST {
			return "", nil, err
		}
	}
}

// Write writes the stream's input to a file atomically: to a temporary file beside it, which is then renamed. A target that is no
// regular file (a device, /proc/sys/...) is written in place instead. Both files are in one opened folder: a process that replaces
// a part of the path meanwhile cannot redirect the write.
func Write(stream *session.Stream, p string, mode os.FileMode, modeGiven, parents bool) error {
	if resolved, err := filepath.EvalSymlinks(p); err == nil {
		p = resolved // write what a link points to, keep the link
	}
	old, err := os.Stat(p)
	switch {
	case err == nil && old.IsDir():
		return fault.New(fault.IsDirectory, p+": is a directory")
	case err == nil && !old.Mode().IsRegular():
		return writeInPlace(stream, p)
	case err == nil && !modeGiven:
		mode = old.Mode()
	case err != nil && parents:
		if err := os.MkdirAll(path.Dir(p), 0o755); err != nil {
			return failed(path.Dir(p), err)
		}
	}
	dir, openErr := syscall.Open(path.Dir(p), pathOnly, 0)
	if openErr != nil {
		return failed(p, openErr)
	}
	defer syscall.Close(dir)
	temp, file, openErr := openTemporary(dir)
	if openErr != nil {
		if err == nil && !errors.Is(openErr, syscall.ENOSPC) {
			return writeInPlace(stream, p) // no file can be made here, as in /proc
		}
		return failed(p, openErr)
	}
	total, err := receive(stream, file)
	if err == nil {
		if old != nil {
			if st, ok := old.Sys().(*syscall.Stat_t); ok {
				_ = file.Chown(int(st.Uid), int(st.Gid))
			}
		}
		err = file.Chmod(mode)
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = syscall.Renameat(dir, temp, dir, path.Base(p))
	}
	if err != nil {
		_ = syscall.Unlinkat(dir, temp)
		return failed(p, err)
	}
	return done(stream, total)
}

func writeInPlace(stream *session.Stream, p string) error {
	file, err := os.OpenFile(p, os.O_WRONLY|os.O_TRUNC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return failed(p, err)
	}
	total, err := receive(stream, file)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return failed(p, err)
	}
	return done(stream, total)
}

func done(stream *session.Stream, total int64) error {
	var w jsonlite.Writer
	stream.Result(w.Open('{').Key("bytes").Int(total).Close('}'))
	return nil
}

func receive(stream *session.Stream, file *os.File) (total int64, err error) {
	for {
		data, err := stream.Receive(nil)
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		if _, err := file.Write(data); err != nil {
			return total, err
		}
		total += int64(len(data))
		stream.Consumed(len(data))
	}
}
