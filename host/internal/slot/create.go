package slot

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"releap/host/internal/failpoint"
	"releap/host/internal/ruleset"
	"releap/host/internal/tap"
)

// Where iproute2 keeps named namespaces.
const netnsDir = "/run/netns"

// Create creates a slot. After an error a part of it may exist, which Destroy removes.
func (s *Slot) Create() error {
	if err := s.create(); err != nil {
		return fmt.Errorf("slot %s: %w", s.Netns, err)
	}
	failpoint.Reach("hostd slot made")
	return nil
}

func (s *Slot) create() error {
	rules, err := s.learnRules()
	if err != nil {
		return fmt.Errorf("its rules cannot be loaded: %w", err)
	}
	if err := inOtherThread(func() error { return makeNetns(s.Netns) }); err != nil {
		return fmt.Errorf("cannot make its namespace: %w", err)
	}
	failpoint.Reach("hostd slot namespace")
	space, err := os.Open(filepath.Join(netnsDir, s.Netns))
	if err != nil {
		return err
	}
	defer space.Close()
	if err := s.connect(space); err != nil {
		return fmt.Errorf("cannot connect it to the host: %w", err)
	}
	failpoint.Reach("hostd slot veth")
	return inOtherThread(func() error {
		if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return s.configure(rules)
	})
}

// inOtherThread runs work in a thread that may change its namespace: nothing else ever runs in it, and it ends with work.
func inOtherThread(work func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- work()
	}()
	return <-done
}

// makeNetns moves the calling thread into a new namespace and names it, as ip-netns(8) does.
func makeNetns(name string) error {
	if err := prepareNetnsDir(); err != nil {
		return err
	}
	target := filepath.Join(netnsDir, name)
	file, err := os.OpenFile(target, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0)
	if err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	source := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
	return unix.Mount(source, target, "", unix.MS_BIND, "")
}

// prepareNetnsDir makes the folder a mount of its own that is shared, as ip-netns(8) does: a namespace that is deleted here is
// then deleted in mount namespaces that follow the host's, too.
func prepareNetnsDir() error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return err
	}
	err := unix.Mount("", netnsDir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err := unix.Mount(netnsDir, netnsDir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Mount("", netnsDir, "none", unix.MS_SHARED|unix.MS_REC, "")
}

// connect makes the veth pair and the host's route to the guest.
func (s *Slot) connect(space *os.File) error {
	outside, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer outside.Close()
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU, attributes.HardwareAddr = s.Veth, s.MTU, mac(s.VethMAC)
	err = outside.LinkAdd(&netlink.Veth{
		LinkAttrs:        attributes,
		PeerName:         s.Uplink,
		PeerHardwareAddr: mac(s.UplinkMAC),
		PeerNamespace:    netlink.NsFd(int(space.Fd())),
	})
	if err != nil {
		return err
	}
	// The host has no address of its own to announce there.
	if err := writeSwitch(filepath.Join("ipv6/conf", s.Veth, "addr_gen_mode"), addrGenModeNone); err != nil {
		return err
	}
	veth, err := outside.LinkByName(s.Veth)
	if err != nil {
		return err
	}
	if err := outside.LinkSetUp(veth); err != nil {
		return err
	}
	index := veth.Attrs().Index
	err = outside.RouteAdd(&netlink.Route{
		LinkIndex: index, Dst: host(s.HostAddress), Scope: netlink.SCOPE_LINK, Src: address(s.ServiceAddress),
	})
	if err != nil {
		return err
	}
	return outside.NeighAdd(neighbour(index, s.HostAddress, s.UplinkMAC))
}

// configure configures the namespace of the calling thread.
func (s *Slot) configure(rules *ruleset.Ruleset) error {
	for _, one := range s.Sysctls {
		if err := writeSwitch(one.Name, one.Value); err != nil {
			return err
		}
	}
	if err := s.configureLinks(); err != nil {
		return fmt.Errorf("cannot make its tap, addresses and routes: %w", err)
	}
	failpoint.Reach("hostd slot addresses")
	return rules.Apply()
}

func (s *Slot) configureLinks() error {
	inside, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer inside.Close()
	if err := makeTap(s.Tap, s.UID); err != nil {
		return err
	}
	loopback, err := inside.LinkByName("lo")
	if err != nil {
		return err
	}
	below, err := inside.LinkByName(s.Tap)
	if err != nil {
		return err
	}
	uplink, err := inside.LinkByName(s.Uplink)
	if err != nil {
		return err
	}
	gateway, err := netlink.ParseAddr(s.Gateway)
	if err != nil {
		return err
	}
	up := uplink.Attrs().Index
	for _, step := range []func() error{
		func() error { return inside.LinkSetUp(loopback) },
		func() error { return inside.LinkSetHardwareAddr(below, mac(s.TapMAC)) },
		func() error { return inside.LinkSetMTU(below, s.MTU) },
		func() error { return inside.LinkSetUp(below) },
		func() error { return inside.AddrAdd(below, gateway) },
		func() error { return inside.NeighAdd(neighbour(below.Attrs().Index, s.GuestIP, s.GuestMAC)) },
		func() error { return inside.AddrAdd(uplink, &netlink.Addr{IPNet: host(s.HostAddress)}) },
		func() error { return inside.LinkSetMTU(uplink, s.MTU) },
		func() error { return inside.LinkSetUp(uplink) },
		func() error {
			return inside.RouteAdd(&netlink.Route{LinkIndex: up, Dst: host(s.ServiceAddress), Scope: netlink.SCOPE_LINK})
		},
		func() error { return inside.RouteAdd(&netlink.Route{LinkIndex: up, Gw: address(s.ServiceAddress)}) },
		func() error { return inside.NeighAdd(neighbour(up, s.ServiceAddress, s.VethMAC)) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// writeSwitch sets a switch of the namespace that the thread is in. A kernel without IPv6 does not have all of them.
func writeSwitch(name, value string) error {
	file, err := os.OpenFile(filepath.Join("/proc/sys/net", name), os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteString(value)
	return err
}

// IN6_ADDR_GEN_MODE_NONE of include/uapi/linux/if_link.h.
const addrGenModeNone = "1"

// makeTap makes a persistent tap, which UID may open.
func makeTap(name string, uid uint32) error {
	file, err := tap.Open(name)
	if err != nil {
		return err
	}
	defer unix.Close(file)
	if err := unix.IoctlSetInt(file, unix.TUNSETOWNER, int(uid)); err != nil {
		return fmt.Errorf("TUNSETOWNER: %w", err)
	}
	if err := unix.IoctlSetInt(file, unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("TUNSETPERSIST: %w", err)
	}
	return nil
}

func neighbour(index int, ip, hardware string) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: address(ip), HardwareAddr: mac(hardware),
	}
}

// The request was validated: what follows cannot fail.

func mac(text string) net.HardwareAddr {
	parsed, _ := net.ParseMAC(text)
	return parsed
}

func address(text string) net.IP {
	parsed, _ := ipv4(text)
	return parsed
}

func host(text string) *net.IPNet {
	return &net.IPNet{IP: address(text), Mask: net.CIDRMask(32, 32)}
}
