package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"releap/guest/internal/process"
)

const (
	copyBuffer = 256 << 10
	newMode    = 0o644
	newFolder  = 0o755
	// handle opens a folder only to work in it.
	handle = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
)

// writeFile writes a file atomically: to a temporary file beside it, which is then renamed. It follows links, keeps the mode and
// owner of the file that it replaces, and creates missing parent folders. A target that is no regular file (a device) is written
// in place. All steps work in one opened folder: a process that replaces a part of the path meanwhile cannot redirect them.
func writeFile(target string, owner process.User, content io.Reader) error {
	folder, name := path.Dir(target), path.Base(target)
	if name == "/" || name == "." || name == ".." {
		return unix.EISDIR
	}
	dir, err := unix.Open(folder, handle, 0)
	if err == unix.ENOENT {
		if err = makeFolders(folder, owner); err == nil {
			dir, err = unix.Open(folder, handle, 0)
		}
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	mode, uid, gid := uint32(newMode), int(owner.UID), int(owner.GID)
	var old unix.Stat_t
	switch err := unix.Fstatat(dir, name, &old, unix.AT_SYMLINK_NOFOLLOW); {
	case err != nil && err != unix.ENOENT:
		return err
	case err == nil && old.Mode&unix.S_IFMT == unix.S_IFDIR:
		return unix.EISDIR
	case err == nil && old.Mode&unix.S_IFMT == unix.S_IFREG:
		mode, uid, gid = old.Mode&0o7777, int(old.Uid), int(old.Gid)
	case err == nil && old.Mode&unix.S_IFMT != unix.S_IFLNK:
		return writeInPlace(dir, name, content)
	case err == nil:
		// What a link points to is written, and the link stays; one that points nowhere is replaced.
		if resolved, err := filepath.EvalSymlinks(target); err == nil && resolved != target {
			return writeFile(resolved, owner, content)
		}
	}
	temporary, file, err := openTemporary(dir, mode)
	if err != nil {
		return err
	}
	err = fill(file, content)
	if err == nil && (uid != os.Getuid() || gid != os.Getgid()) {
		err = file.Chown(uid, gid)
	}
	// A new file has its permissions, unless they have bits that the umask removes. A change of them costs as much as a write.
	if err == nil && mode != newMode {
		err = unix.Fchmod(int(file.Fd()), mode)
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = unix.Renameat(dir, temporary, dir, name)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, temporary, 0)
	}
	return err
}

// openTemporary creates a file that no one may access who may not access the one that it becomes.
func openTemporary(dir int, mode uint32) (string, *os.File, error) {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", nil, err
	}
	name := ".releap-" + hex.EncodeToString(random[:]) + ".tmp"
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode&newMode)
	if err != nil {
		return "", nil, err
	}
	return name, os.NewFile(uintptr(fd), name), nil
}

func writeInPlace(dir int, name string, content io.Reader) error {
	// A FIFO without a reader is an error, and never blocks.
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_TRUNC|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), name)
	err = fill(file, content)
	if closed := file.Close(); err == nil {
		err = closed
	}
	return err
}

var buffers = sync.Pool{New: func() interface{} { b := make([]byte, copyBuffer); return &b }}

func fill(file *os.File, content io.Reader) error {
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	for {
		// The parts of a form come in pieces of 4 KiB. io.ReadFull would take a body that is cut off for a complete one.
		n, err := 0, error(nil)
		for more := 0; err == nil && n < len(*buffer); n += more {
			more, err = content.Read((*buffer)[n:])
		}
		if n > 0 {
			if _, err := file.Write((*buffer)[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// makeFolders creates a folder and its missing parents for their owner.
func makeFolders(folder string, owner process.User) error {
	switch info, err := os.Stat(folder); {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return unix.ENOTDIR
	case !errors.Is(err, syscall.ENOENT):
		return err
	}
	parent := path.Dir(folder)
	if err := makeFolders(parent, owner); err != nil {
		return err
	}
	dir, err := unix.Open(parent, handle, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	name := path.Base(folder)
	if err := unix.Mkdirat(dir, name, newFolder); err != nil {
		if err == unix.EEXIST { // created by another request
			return nil
		}
		return err
	}
	return unix.Fchownat(dir, name, int(owner.UID), int(owner.GID), unix.AT_SYMLINK_NOFOLLOW)
}
