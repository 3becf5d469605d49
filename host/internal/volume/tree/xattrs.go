package tree

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/manifest"
)

// ErrXattrs: the extended attributes are more than can be read or recorded.
var ErrXattrs = errors.New("its extended attributes are too many")

// isRecorded says which attributes belong to the tree. The others are those of this host (labels, trusted.*).
func isRecorded(name string) bool {
	switch name {
	case "system.posix_acl_access", "system.posix_acl_default", "security.capability":
		return true
	}
	return strings.HasPrefix(name, "user.")
}

// procPath names something in a folder for calls that take a path. Only its last part is resolved, and not followed: the rest is a
// descriptor.
func procPath(folder int, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", folder, name)
}

// Xattrs reads the attributes that are recorded, as the block of manifest.EncodeXattrs.
func Xattrs(folder int, name string) ([]byte, error) {
	path := procPath(folder, name)
	list, err := sized(func(buffer []byte) (int, error) { return unix.Llistxattr(path, buffer) })
	if err != nil || len(list) == 0 {
		return nil, err
	}
	var xattrs []manifest.Xattr
	total := 0
	for _, attribute := range strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		if !isRecorded(attribute) {
			continue
		}
		value, err := sized(func(buffer []byte) (int, error) { return unix.Lgetxattr(path, attribute, buffer) })
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if total += len(attribute) + len(value) + 8; total > manifest.MaxXattrs {
			return nil, ErrXattrs
		}
		xattrs = append(xattrs, manifest.Xattr{Name: attribute, Value: value})
	}
	return manifest.EncodeXattrs(xattrs), nil
}

// sized calls twice: for the size, and for the content. It repeats what has become larger in between.
func sized(call func(buffer []byte) (int, error)) ([]byte, error) {
	for attempt := 0; attempt < 10; attempt++ {
		size, err := call(nil)
		if err == nil && size > 0 {
			buffer := make([]byte, size)
			if size, err = call(buffer); err == nil {
				return buffer[:size], nil
			}
			if errors.Is(err, unix.ERANGE) {
				continue
			}
		}
		// Longer than the kernel can list at all.
		if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ERANGE) {
			return nil, ErrXattrs
		}
		if errors.Is(err, unix.ENOTSUP) {
			return nil, nil
		}
		return nil, err
	}
	return nil, ErrXattrs
}

// SetXattrs sets the attributes of a block on something new.
func SetXattrs(folder int, name string, block []byte) error {
	xattrs, err := manifest.DecodeXattrs(block)
	if err != nil {
		return err
	}
	return set(procPath(folder, name), xattrs, unix.Lsetxattr)
}

// ReplaceXattrs makes the recorded attributes those of a block, of something that a path names and no tenant can replace.
func ReplaceXattrs(path string, block []byte) error {
	wanted, err := manifest.DecodeXattrs(block)
	if err != nil {
		return err
	}
	keep := make(map[string]bool, len(wanted))
	for _, xattr := range wanted {
		keep[xattr.Name] = true
	}
	names, err := sized(func(buffer []byte) (int, error) { return unix.Listxattr(path, buffer) })
	if err != nil && !errors.Is(err, ErrXattrs) {
		return err
	}
	for _, name := range strings.Split(string(names), "\x00") {
		if !isRecorded(name) || keep[name] {
			continue
		}
		if err := unix.Removexattr(path, name); err != nil && !errors.Is(err, unix.ENODATA) {
			return err
		}
	}
	return set(path, wanted, unix.Setxattr)
}

func set(path string, xattrs []manifest.Xattr, call func(path, name string, value []byte, flags int) error) error {
	for _, xattr := range xattrs {
		if !isRecorded(xattr.Name) {
			return fmt.Errorf("a manifest has the extended attribute %.100q, which is not allowed", xattr.Name)
		}
		if err := call(path, xattr.Name, xattr.Value, 0); err != nil {
			return fmt.Errorf("setting the extended attribute %.100q: %w", xattr.Name, err)
		}
	}
	return nil
}
