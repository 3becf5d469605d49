package main

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// maxRequest is the most bytes that the kernel asks for at once. It is the kernel's own limit.
	maxRequest = 1 << 20
	// readAheadKiB is as long as a request: several in flight arrive out of order, and rclone would open the object again.
	readAheadKiB = maxRequest >> 10
)

// connect mounts a FUSE file system. It returns the name by which the FUSE library takes the connection to the kernel: with it the
// library calls no fusermount(1), which images need not have.
func connect(path, source string, readOnly bool) (string, error) {
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("/dev/fuse: %w", err)
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if readOnly {
		flags |= unix.MS_RDONLY
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,max_read=%d", device, maxRequest)
	if err := unix.Mount(source, path, "fuse.rclone", flags, data); err != nil {
		_ = unix.Close(device)
		return "", fmt.Errorf("mount %s: %w", path, err)
	}
	return "/dev/fd/" + strconv.Itoa(device), nil
}

// readAhead raises how much the kernel reads ahead of a sequential reader in this mount. By itself it stays at 128 KiB, whatever the
// server of the file system allows, and then no request is larger.
func readAhead(path string) error {
	var found unix.Stat_t
	if err := unix.Stat(path, &found); err != nil {
		return err
	}
	setting := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(found.Dev), unix.Minor(found.Dev))
	return os.WriteFile(setting, []byte(strconv.Itoa(readAheadKiB)), 0)
}
