// Package tap opens tap devices for QEMU.
package tap

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Open opens the tap of that name in the network namespace of the calling thread, and makes it if there is none. Packets have
// the header that virtio-net needs. The descriptor is closed by execve(2).
func Open(name string) (int, error) {
	file, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("/dev/net/tun: %w", err)
	}
	asked, err := unix.NewIfreq(name)
	if err == nil {
		asked.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(file, unix.TUNSETIFF, asked)
	}
	if err != nil {
		_ = unix.Close(file)
		return -1, fmt.Errorf("TUNSETIFF of %q: %w", name, err)
	}
	return file, nil
}
