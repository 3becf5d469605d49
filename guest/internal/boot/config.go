package boot

import (
	"encoding/base64"
	"net"
	"strconv"
	"strings"

	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
)

// Network of the sandbox: one interface, IPv4.
type Network struct {
	Interface string
	Address   net.IP
	Prefix    int
	Gateway   net.IP
	DNS       []string
	MAC       net.HardwareAddr
	MTU       int
}

// Disk names a block device ("vda") and, when known, its size in bytes: a device that was exchanged under a
// restored kernel shows its new size only after an interrupt, and must not be used before.
type Disk struct {
	Device string
	Type   string
	Bytes  int64
	// Mounted says that it was not exchanged since this machine has mounted it.
	Mounted bool
}

// Identity is what makes one restored copy different from another.
type Identity struct {
	Hostname  string
	MachineID string
	Clock     Clock
	Entropy   []byte
	DNS       []string
}

var rootTypes = map[string]bool{"squashfs": true, "erofs": true, "ext4": true}

// ParseIdentity of configure and reconfigure.
func ParseIdentity(v jsonlite.Value) (id Identity, err error) {
	if id.Hostname, err = v.Get("hostname").Text("hostname"); err != nil {
		return id, err
	}
	if len(id.Hostname) > 64 || strings.ContainsAny(id.Hostname, "/\n\x00 ") {
		return id, fault.New(fault.Invalid, "hostname must be at most 64 characters without spaces or slashes")
	}
	if id.MachineID, err = v.Get("machine_id").Text("machine_id"); err != nil {
		return id, err
	}
	if id.MachineID != "" && len(strings.Trim(id.MachineID, "0123456789abcdef")) != 0 || len(id.MachineID) > 32 {
		return id, fault.New(fault.Invalid, "machine_id must be 32 lowercase hexadecimal digits")
	}
	if id.Clock, err = ParseClock(v); err != nil {
		return id, err
	}
	entropy, err := v.Get("entropy").Text("entropy")
	if err != nil {
		return id, err
	}
	if id.Entropy, err = base64.StdEncoding.DecodeString(entropy); err != nil || len(id.Entropy) > 1024 {
		return id, fault.New(fault.Invalid, "entropy must be base64 of at most 1024 bytes")
	}
	if id.DNS, err = v.Get("dns").Texts("dns"); err != nil {
		return id, err
	}
	for _, server := range id.DNS {
		if net.ParseIP(server) == nil {
			return id, fault.New(fault.Invalid, "dns: "+strconv.Quote(server)+" is not an IP address")
		}
	}
	return id, nil
}

// ParseNetwork reads {address, prefix, gateway?, mac?, mtu?, interface?}.
func ParseNetwork(v jsonlite.Value) (*Network, error) {
	if !v.Present() {
		return nil, nil
	}
	n := &Network{}
	address := func(key string) (net.IP, error) {
		text, err := v.Get(key).Text("network." + key)
		if err != nil || text == "" {
			return nil, err
		}
		if ip := net.ParseIP(text).To4(); ip != nil {
			return ip, nil
		}
		return nil, fault.New(fault.Invalid, "network."+key+" must be an IPv4 address")
	}
	var err error
	if n.Address, err = address("address"); err != nil {
		return nil, err
	}
	if n.Address == nil {
		return nil, fault.New(fault.Invalid, "network.address is missing")
	}
	if n.Gateway, err = address("gateway"); err != nil {
		return nil, err
	}
	prefix, err := v.Get("prefix").Int("network.prefix", 30, 1, 32)
	if err != nil {
		return nil, err
	}
	mtu, err := v.Get("mtu").Int("network.mtu", 0, 0, 65535)
	if err != nil {
		return nil, err
	}
	n.Prefix, n.MTU = int(prefix), int(mtu)
	if n.Interface, err = v.Get("interface").Text("network.interface"); err != nil {
		return nil, err
	}
	if n.Interface == "" {
		n.Interface = "eth0"
	}
	if len(n.Interface) > 15 || strings.ContainsAny(n.Interface, "/ ") {
		return nil, fault.New(fault.Invalid, "network.interface is not a name of an interface")
	}
	mac, err := v.Get("mac").Text("network.mac")
	if err != nil {
		return nil, err
	}
	if mac != "" {
		if n.MAC, err = net.ParseMAC(mac); err != nil || len(n.MAC) != 6 {
			return nil, fault.New(fault.Invalid, "network.mac must look like 52:54:00:00:00:01")
		}
	}
	return n, nil
}

// ParseDisk reads {device, fstype?, bytes?, mounted?}; nil when absent.
func ParseDisk(v jsonlite.Value, name, fallbackType string) (*Disk, error) {
	if !v.Present() {
		return nil, nil
	}
	d := &Disk{}
	var err error
	if d.Device, err = v.Get("device").Text(name + ".device"); err != nil {
		return nil, err
	}
	d.Device = strings.TrimPrefix(d.Device, "/dev/")
	if d.Device == "" || len(d.Device) > 32 || strings.ContainsAny(d.Device, "/.\x00") {
		return nil, fault.New(fault.Invalid, name+".device must name a block device such as \"vda\"")
	}
	if d.Type, err = v.Get("fstype").Text(name + ".fstype"); err != nil {
		return nil, err
	}
	if d.Type == "" {
		d.Type = fallbackType
	}
	if !rootTypes[d.Type] {
		return nil, fault.New(fault.Invalid, name+".fstype "+strconv.Quote(d.Type)+" is not one of squashfs, erofs, ext4")
	}
	if d.Mounted, err = v.Get("mounted").Flag(name + ".mounted"); err != nil {
		return nil, err
	}
	d.Bytes, err = v.Get("bytes").Int(name+".bytes", 0, 0, 1<<50)
	return d, err
}
