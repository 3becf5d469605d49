package tree

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/manifest"
)

// CreateFile creates a file of a length, all of it a hole.
func CreateFile(folder int, name string, size uint64) (int, error) {
	fd, err := retry(func() (int, error) {
		return unix.Openat(folder, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return -1, err
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// OpenWritable opens a file for reading and writing.
func OpenWritable(folder int, name string) (int, error) {
	return retry(func() (int, error) { return unix.Openat(folder, name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0) })
}

// WriteAt writes all of data.
func WriteAt(fd int, data []byte, at uint64) error {
	for len(data) > 0 {
		n, err := unix.Pwrite(fd, data, int64(at))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		data, at = data[n:], at+uint64(n)
	}
	return nil
}

// CreateSpecial creates a symbolic link, FIFO or whiteout.
func CreateSpecial(folder int, name string, entry *manifest.Entry) error {
	switch entry.Type {
	case manifest.Symlink:
		return unix.Symlinkat(entry.Target, folder, name)
	case manifest.Fifo:
		return unix.Mknodat(folder, name, unix.S_IFIFO|0o600, 0)
	case manifest.Whiteout:
		return unix.Mknodat(folder, name, unix.S_IFCHR|0o600, 0)
	}
	return manifest.ErrDamaged
}

// SetAttributes sets owner, extended attributes, mode and mtime of something that no tenant can change meanwhile: changing the owner
// clears the set-user-ID bit and the capabilities, so it is first.
func SetAttributes(folder int, name string, entry *manifest.Entry, xattrs []byte) error {
	if err := unix.Fchownat(folder, name, int(entry.UID), int(entry.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if err := SetXattrs(folder, name, xattrs); err != nil {
		return err
	}
	if entry.Type != manifest.Symlink {
		if err := unix.Fchmodat(folder, name, entry.Mode, 0); err != nil {
			return err
		}
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: entry.Mtime.Sec, Nsec: int64(entry.Mtime.Nsec)}}
	return unix.UtimesNanoAt(folder, name, times, unix.AT_SYMLINK_NOFOLLOW)
}

// Remove removes something, with all that is below it. It is no error if it is not there.
func Remove(folder int, name string) error {
	err := unix.Unlinkat(folder, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	fd, err := OpenFolder(folder, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	names, err := Names(fd)
	if err != nil {
		return err
	}
	for _, child := range names {
		if err := Remove(fd, child); err != nil {
			return err
		}
	}
	if err := unix.Unlinkat(folder, name, unix.AT_REMOVEDIR); !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// OpenParent opens the folder of a path of the tree, and gives the path's last name. The descriptor is the caller's.
func OpenParent(root int, path string) (int, string, error) {
	fd, err := unix.FcntlInt(uintptr(root), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, "", err
	}
	for {
		name, rest, more := strings.Cut(path, "/")
		if !more {
			return fd, name, nil
		}
		next, err := OpenFolder(fd, name)
		unix.Close(fd)
		if err != nil {
			return -1, "", err
		}
		fd, path = next, rest
	}
}

// SetLive sets what SetAttributes sets, of something that a tenant may replace meanwhile: all by a descriptor of it, which may be
// O_PATH. Symbolic links have an owner and an mtime alone.
func SetLive(fd int, entry *manifest.Entry, xattrs []byte) error {
	if err := unix.Fchownat(fd, "", int(entry.UID), int(entry.GID), unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	if entry.Type != manifest.Symlink {
		path := fmt.Sprintf("/proc/self/fd/%d", fd)
		if err := ReplaceXattrs(path, xattrs); err != nil {
			return err
		}
		if err := unix.Chmod(path, entry.Mode); err != nil {
			return err
		}
	}
	return SetMtime(fd, entry.Mtime)
}

// SetMtime sets the mtime of an open file or folder.
func SetMtime(fd int, mtime manifest.Time) error {
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: mtime.Sec, Nsec: int64(mtime.Nsec)}}
	return unix.UtimesNanoAt(fd, "", times, unix.AT_EMPTY_PATH)
}

// OpenPath opens anything as it is, for SetLive.
func OpenPath(folder int, name string) (int, error) {
	return retry(func() (int, error) { return unix.Openat(folder, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0) })
}
