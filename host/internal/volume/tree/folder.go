// Package tree reads and writes a tree that a tenant may change at the same time: every name is resolved beneath the descriptor of
// its folder, and no symbolic link is ever followed.
package tree

import (
	"errors"
	"fmt"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/manifest"
)

// Stat is what lstat says.
type Stat struct {
	Mode  uint32 // with the type
	UID   uint32
	GID   uint32
	Nlink uint64
	Size  int64
	Ino   uint64
	Dev   uint64
	Rdev  uint64
	Mtime manifest.Time
	Ctime manifest.Time
}

// Type gives the type of the manifest's entry, or 0 for what has none (sockets, devices).
func (s *Stat) Type() byte {
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return manifest.Folder
	case unix.S_IFREG:
		return manifest.File
	case unix.S_IFLNK:
		return manifest.Symlink
	case unix.S_IFIFO:
		return manifest.Fifo
	case unix.S_IFCHR:
		if s.Rdev == 0 {
			return manifest.Whiteout
		}
	}
	return 0
}

func statOf(st *unix.Stat_t) Stat {
	return Stat{
		Mode: st.Mode, UID: st.Uid, GID: st.Gid, Nlink: uint64(st.Nlink), Size: st.Size, Ino: st.Ino, Dev: uint64(st.Dev), Rdev: uint64(st.Rdev),
		Mtime: manifest.Time{Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec)}, Ctime: manifest.Time{Sec: st.Ctim.Sec, Nsec: uint32(st.Ctim.Nsec)},
	}
}

// Fstat is fstat(2).
func Fstat(fd int) (Stat, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return statOf(&st), err
}

// Lstat does not follow name.
func Lstat(folder int, name string) (Stat, error) {
	var st unix.Stat_t
	err := unix.Fstatat(folder, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return statOf(&st), err
}

const openFolder = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK

// OpenRoot opens the folder of a tree.
func OpenRoot(path string) (int, error) {
	fd, err := unix.Open(path, openFolder, 0)
	if err != nil {
		return -1, fmt.Errorf("opening the folder %s: %w", path, err)
	}
	return fd, nil
}

// OpenFolder opens a folder that is in another.
func OpenFolder(parent int, name string) (int, error) {
	return retry(func() (int, error) { return unix.Openat(parent, name, openFolder, 0) })
}

// OpenFile opens a file for reading, without its atime. It does not wait for the other side if a FIFO is there instead.
func OpenFile(folder int, name string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY
	fd, err := retry(func() (int, error) { return unix.Openat(folder, name, flags|unix.O_NOATIME, 0) })
	if errors.Is(err, unix.EPERM) {
		return retry(func() (int, error) { return unix.Openat(folder, name, flags, 0) })
	}
	return fd, err
}

func retry(call func() (int, error)) (int, error) {
	for {
		fd, err := call()
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// Names lists a folder, sorted by bytes.
func Names(folder int) ([]string, error) {
	if _, err := unix.Seek(folder, 0, 0); err != nil {
		return nil, err
	}
	buffer := make([]byte, 64*1024)
	var names []string
	for {
		n, err := unix.ReadDirent(folder, buffer)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			break
		}
		_, _, names = unix.ParseDirent(buffer[:n], -1, names)
	}
	sort.Strings(names)
	return names, nil
}

// IsGone says that a name was removed, or replaced by something of another type, since it was listed.
func IsGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ESTALE)
}

// IsOther says that what a sandbox has put at a name cannot be opened: a socket, or a device.
func IsOther(err error) bool {
	return errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENODEV)
}

// Join joins a path of the tree and a name.
func Join(folder, name string) string {
	if folder == "" {
		return name
	}
	return folder + "/" + name
}

// Printable gives a path for people: bytes that are control characters or not UTF-8 as \xNN.
func Printable(path string) string {
	const max = 4096
	cut := len(path) > max
	if cut {
		path = path[:max]
	}
	var text strings.Builder
	for i, char := range path {
		switch {
		case char == '\\':
			text.WriteString(`\\`)
		case char < 0x20 || char == 0x7f:
			fmt.Fprintf(&text, `\x%02x`, char)
		case char == '\uFFFD' && !strings.HasPrefix(path[i:], "\uFFFD"):
			fmt.Fprintf(&text, `\x%02x`, path[i])
		default:
			text.WriteRune(char)
		}
	}
	if cut {
		text.WriteString("…")
	}
	return text.String()
}

// PathError says which path of a tree an error is about.
type PathError struct {
	Path string
	Err  error
}

func (e *PathError) Error() string { return fmt.Sprintf("%s: %v", Printable(e.Path), e.Err) }
func (e *PathError) Unwrap() error { return e.Err }
