package boot

import (
	"net"
	"os"
	"syscall"
	"unsafe"

	"releap/guest/internal/fault"
)

// Requests of netdevice(7), by hand: the standard library has no constants for all of them.
const (
	siocAddRT      = 0x890B
	siocGIfFlags   = 0x8913
	siocSIfFlags   = 0x8914
	siocSIfAddr    = 0x8916
	siocSIfNetmask = 0x891c
	siocGIfMTU     = 0x8921
	siocSIfMTU     = 0x8922
	siocSIfHWAddr  = 0x8924
)

// ifreq is struct ifreq: a name and a union of 24 bytes.
type ifreq struct {
	name [16]byte
	data [24]byte
}

type sockaddr struct {
	family uint16
	port   uint16
	ip     [4]byte
	_      [8]byte
}

// rtentry is struct rtentry on 64 bit machines.
type rtentry struct {
	_       uint64
	dst     sockaddr
	gateway sockaddr
	mask    sockaddr
	flags   uint16
	_       int16
	_       [4]byte
	_       uint64
	_       uint64
	metric  int16
	_       [6]byte
	dev     uint64
	mtu     uint64
	window  uint64
	irtt    uint16
	_       [6]byte
}

// key of what is configured, so that a network made before the template need not be made again after it.
func (n *Network) key() string {
	return n.Interface + " " + n.Address.String() + " " + n.Gateway.String() + " " + n.MAC.String()
}

var current string

// MarkApplied says that the interface has this network already.
func (n *Network) MarkApplied() { current = n.key() }

// Loopback up.
func Loopback() error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	return setUp(fd, "lo", true)
}

// Apply a network to its interface.
func (n *Network) Apply() error {
	if n.key() == current && n.MTU == 0 {
		return nil
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	fail := func(what string, err error) error {
		return fault.New(fault.Internal, "network "+n.Interface+": "+what+": "+err.Error())
	}
	if n.MAC != nil {
		_ = setUp(fd, n.Interface, false)
		r := request(n.Interface)
		*(*uint16)(unsafe.Pointer(&r.data[0])) = 1 // ARPHRD_ETHER
		copy(r.data[2:], n.MAC)
		if err := call(fd, siocSIfHWAddr, unsafe.Pointer(&r)); err != nil {
			return fail("hardware address", err)
		}
	}
	if n.MTU != 0 {
		r := request(n.Interface)
		if err := call(fd, siocGIfMTU, unsafe.Pointer(&r)); err != nil {
			return fail("mtu", err)
		}
		if mtu := (*int32)(unsafe.Pointer(&r.data[0])); *mtu != int32(n.MTU) {
			*mtu = int32(n.MTU)
			if err := call(fd, siocSIfMTU, unsafe.Pointer(&r)); err != nil {
				return fail("mtu", err)
			}
		}
	}
	if n.key() == current {
		return nil
	}
	r := request(n.Interface)
	*(*sockaddr)(unsafe.Pointer(&r.data[0])) = inet(n.Address)
	if err := call(fd, siocSIfAddr, unsafe.Pointer(&r)); err != nil {
		return fail("address", err)
	}
	*(*sockaddr)(unsafe.Pointer(&r.data[0])) = inet(net.IP(net.CIDRMask(n.Prefix, 32)))
	if err := call(fd, siocSIfNetmask, unsafe.Pointer(&r)); err != nil {
		return fail("netmask", err)
	}
	if err := setUp(fd, n.Interface, true); err != nil {
		return fail("up", err)
	}
	if n.Gateway != nil {
		rt := rtentry{dst: inet(net.IPv4zero), mask: inet(net.IPv4zero), gateway: inet(n.Gateway), flags: 3} // RTF_UP|RTF_GATEWAY
		if err := call(fd, siocAddRT, unsafe.Pointer(&rt)); err != nil && err != syscall.EEXIST {
			return fail("default route", err)
		}
	}
	current = n.key()
	return nil
}

// Exists tells whether the machine has the interface.
func (n *Network) Exists() bool {
	_, err := os.Stat("/sys/class/net/" + n.Interface)
	return err == nil
}

func request(name string) ifreq {
	var r ifreq
	copy(r.name[:15], name)
	return r
}

func inet(ip net.IP) sockaddr {
	s := sockaddr{family: syscall.AF_INET}
	copy(s.ip[:], ip.To4())
	return s
}

func setUp(fd int, name string, up bool) error {
	r := request(name)
	if err := call(fd, siocGIfFlags, unsafe.Pointer(&r)); err != nil {
		return err
	}
	flags := (*uint16)(unsafe.Pointer(&r.data[0]))
	if up {
		*flags |= syscall.IFF_UP | syscall.IFF_RUNNING
	} else {
		*flags &^= syscall.IFF_UP
	}
	return call(fd, siocSIfFlags, unsafe.Pointer(&r))
}

func call(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
