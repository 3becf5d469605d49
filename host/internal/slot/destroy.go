package slot

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"releap/host/internal/failpoint"
)

// Destroy removes what is left of a slot, and the host's connection tracking entries of it. Idempotent.
func (r *Remove) Destroy() error {
	outside, err := netlink.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer outside.Close()
	var absent netlink.LinkNotFoundError
	veth, err := outside.LinkByName(r.Veth)
	if err == nil {
		err = outside.LinkDel(veth)
	}
	if err != nil && !errors.As(err, &absent) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("cannot remove %s: %w", r.Veth, err)
	}
	failpoint.Reach("hostd slot unlinked")
	if err := deleteNetns(r.Netns); err != nil {
		return fmt.Errorf("cannot remove the namespace %s: %w", r.Netns, err)
	}
	failpoint.Reach("hostd slot namespace removed")
	// Only now, with no way left to make new ones: a late packet of an old peer must not reach the next tenant.
	return forgetConnections(outside, address(r.HostAddress))
}

func deleteNetns(name string) error {
	target := filepath.Join(netnsDir, name)
	// Not a mount (EINVAL): a process died between making the file and the mount.
	if err := unix.Unmount(target, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func forgetConnections(outside *netlink.Handle, guest net.IP) error {
	for _, side := range []netlink.ConntrackFilterType{netlink.ConntrackOrigSrcIP, netlink.ConntrackOrigDstIP} {
		filter := &netlink.ConntrackFilter{}
		if err := filter.AddIP(side, guest); err != nil {
			return err
		}
		if _, err := outside.ConntrackDeleteFilter(netlink.ConntrackTable, unix.AF_INET, filter); err != nil {
			return fmt.Errorf("cannot forget connections of %s: %w", guest, err)
		}
	}
	return nil
}
