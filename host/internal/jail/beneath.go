package jail

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// openBeneath opens a folder below root, and makes those of its path that do not exist: owned by root, mode 0755. Whatever a
// tenant has put there or exchanges meanwhile, the result is a folder below root, reached through folders of that file system.
func openBeneath(root, subpath string) (int, error) {
	folder, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("%s: %w", root, err)
	}
	walked := ""
	for _, name := range strings.Split(subpath, "/") {
		if name == "" || name == "." {
			continue
		}
		walked = strings.TrimPrefix(walked+"/"+name, "/")
		next, err := openOrMake(folder, name)
		_ = unix.Close(folder)
		if err != nil {
			return -1, fmt.Errorf("subpath %q: %q %w", subpath, walked, err)
		}
		folder = next
	}
	return folder, nil
}

var (
	errLink   = errors.New("is a symbolic link; a subpath must lead through folders")
	errFile   = errors.New("is not a folder")
	errParent = errors.New("leads out of the volume")
)

func openOrMake(folder int, name string) (int, error) {
	how := unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS |
			unix.RESOLVE_NO_XDEV,
	}
	if name == ".." {
		return -1, errParent
	}
	for made := false; ; made = true {
		next, err := unix.Openat2(folder, name, &how)
		switch {
		case err == nil:
			return next, nil
		case errors.Is(err, unix.ENOENT) && !made:
			if err := unix.Mkdirat(folder, name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
				return -1, fmt.Errorf("cannot be made: %w", err)
			}
		case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
			// With O_DIRECTORY and O_NOFOLLOW, both are the errors of a link.
			return -1, kindOf(folder, name)
		default:
			return -1, fmt.Errorf("cannot be opened: %w", err)
		}
	}
}

// kindOf tells what is in the way of a folder.
func kindOf(folder int, name string) error {
	var facts unix.Stat_t
	if err := unix.Fstatat(folder, name, &facts, unix.AT_SYMLINK_NOFOLLOW); err == nil && facts.Mode&unix.S_IFMT == unix.S_IFLNK {
		return errLink
	}
	return errFile
}
