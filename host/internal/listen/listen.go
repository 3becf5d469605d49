// Package listen hands a listening socket with IP_TRANSPARENT to a process that may not make one.
package listen

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

const (
	// Where the command finds the socket.
	descriptor = 3
	backlog    = 1024
)

// Exec turns this process into the command after the address, with a TCP socket as descriptor 3 that is bound to the address and
// to a port that the kernel chooses. Connections that nftables redirects to it (tproxy) keep the address that they were for.
func Exec(args []string) error {
	if len(args) < 3 || args[1] != "--" {
		return errors.New("usage: hostd listen-transparent ADDRESS -- COMMAND [ARGUMENT]...")
	}
	address, err := netip.ParseAddr(args[0])
	if err != nil || !address.Is4() {
		return fmt.Errorf("not an IPv4 address: %q", args[0])
	}
	command := args[2:]
	program, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if err := unix.SetsockoptInt(socket, unix.SOL_IP, unix.IP_TRANSPARENT, 1); err != nil {
		return fmt.Errorf("IP_TRANSPARENT: %w", err)
	}
	if err := unix.Bind(socket, &unix.SockaddrInet4{Addr: address.As4()}); err != nil {
		return fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	if err := unix.Listen(socket, backlog); err != nil {
		return fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	// Go's runtime may have descriptor 3 in use: nothing but system calls may follow.
	if socket == descriptor {
		_, err = unix.FcntlInt(uintptr(socket), unix.F_SETFD, 0)
	} else {
		err = unix.Dup3(socket, descriptor, 0)
	}
	if err != nil {
		return fmt.Errorf("descriptor %d: %w", descriptor, err)
	}
	return unix.Exec(program, command, os.Environ())
}
