// Package slot makes and removes the networks of sandboxes: a namespace with a tap, and a veth pair to the host.
package slot

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"regexp"
	"strings"
)

// Slot is what a slot is made of. The runner decides all of it; docs/network.md describes it.
type Slot struct {
	// Name of the namespace, which `ip netns` shows as well.
	Netns string `json:"netns"`
	// Host end of the veth pair, and its end inside.
	Veth      string `json:"veth"`
	VethMAC   string `json:"veth_mac"`
	Uplink    string `json:"uplink"`
	UplinkMAC string `json:"uplink_mac"`
	// The guest as the host sees it, and the host as the guest's namespace sees it.
	HostAddress    string `json:"host_address"`
	ServiceAddress string `json:"service_address"`
	// The VMM's tap, and the user that may open it.
	Tap    string `json:"tap"`
	TapMAC string `json:"tap_mac"`
	UID    uint32 `json:"uid"`
	// The guest behind the tap.
	Gateway  string `json:"gateway"`
	GuestIP  string `json:"guest_ip"`
	GuestMAC string `json:"guest_mac"`
	MTU      int    `json:"mtu"`
	// Switches below /proc/sys/net in the namespace, in order; those that a kernel does not have are left out.
	Sysctls []Sysctl `json:"sysctls"`
	// Rules of the namespace, for nft(8).
	Rules string `json:"rules"`
}

// Sysctl is a switch of a namespace.
type Sysctl struct {
	// As a path: ipv4/ip_forward.
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Remove names what is left of a slot; any of it may be absent.
type Remove struct {
	Netns       string `json:"netns"`
	Veth        string `json:"veth"`
	HostAddress string `json:"host_address"`
}

const sysctlsMax = 32

// Every name of ours begins so: nothing else on the host can be named by a request.
var (
	netnsName  = regexp.MustCompile(`^rl[0-9a-f]{8}-[0-9]{1,4}$`)
	vethName   = regexp.MustCompile(`^rl[0-9a-f]{8}v[0-9]{1,4}$`)
	insideName = regexp.MustCompile(`^[a-z][a-z0-9]{0,14}$`)
	sysctlName = regexp.MustCompile(`^ipv[46](/[a-z0-9_]{1,40}){1,4}$`)
	sysctlText = regexp.MustCompile(`^[0-9]{1,10}$`)
)

// Validate refuses what is not a slot of ours.
func (s *Slot) Validate() error {
	if err := names(s.Netns, s.Veth); err != nil {
		return err
	}
	for _, name := range []string{s.Uplink, s.Tap} {
		if !insideName.MatchString(name) {
			return fmt.Errorf("not a name of an interface: %q", name)
		}
	}
	for _, text := range []string{s.VethMAC, s.UplinkMAC, s.TapMAC, s.GuestMAC} {
		if mac, err := net.ParseMAC(text); err != nil || len(mac) != 6 {
			return fmt.Errorf("not a MAC address: %q", text)
		}
	}
	for _, text := range []string{s.HostAddress, s.ServiceAddress, s.GuestIP} {
		if _, err := ipv4(text); err != nil {
			return err
		}
	}
	if prefix, err := netip.ParsePrefix(s.Gateway); err != nil || !prefix.Addr().Is4() {
		return fmt.Errorf("not an IPv4 address with a prefix: %q", s.Gateway)
	}
	if s.UID == 0 || s.MTU < 576 || s.MTU > 65_535 {
		return fmt.Errorf("not the user %d and the MTU %d of a slot", s.UID, s.MTU)
	}
	if len(s.Sysctls) > sysctlsMax {
		return errors.New("too many switches")
	}
	for _, one := range s.Sysctls {
		if !sysctlName.MatchString(one.Name) || path.Clean(one.Name) != one.Name || !sysctlText.MatchString(one.Value) {
			return fmt.Errorf("not a switch of a namespace: %q = %q", one.Name, one.Value)
		}
	}
	// nft reads files that a script includes.
	if strings.Contains(s.Rules, "include") {
		return errors.New("rules may not include files")
	}
	return nil
}

// Validate refuses what is not a slot of ours.
func (r *Remove) Validate() error {
	if err := names(r.Netns, r.Veth); err != nil {
		return err
	}
	_, err := ipv4(r.HostAddress)
	return err
}

func names(netns, veth string) error {
	if !netnsName.MatchString(netns) || !vethName.MatchString(veth) {
		return fmt.Errorf("not names of a slot: %q, %q", netns, veth)
	}
	return nil
}

func ipv4(text string) (net.IP, error) {
	address, err := netip.ParseAddr(text)
	if err != nil || !address.Is4() {
		return nil, fmt.Errorf("not an IPv4 address: %q", text)
	}
	return net.IP(address.AsSlice()), nil
}
