package jail

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"releap/host/internal/tap"
)

const (
	// Standard streams are below. Descriptors that this process uses meanwhile are above (reserve).
	firstDescriptor = 3
	lastDescriptor  = 63
	// A VMM has one client on each socket; one more may come while that leaves.
	listenBacklog = 4
)

// placement is something that this process opens, and its descriptor in the command.
type placement struct {
	name       string
	target     int
	descriptor int
}

type placements []placement

func (p *placements) String() string { return fmt.Sprint(*p) }

// Set parses NAME=DESCRIPTOR.
func (p *placements) Set(value string) error {
	at := strings.LastIndexByte(value, '=')
	if at < 1 {
		return errors.New("not NAME=DESCRIPTOR")
	}
	target, err := strconv.Atoi(value[at+1:])
	if err != nil || target < firstDescriptor || target > lastDescriptor {
		return fmt.Errorf("not a descriptor from %d to %d", firstDescriptor, lastDescriptor)
	}
	*p = append(*p, placement{name: value[:at], target: target})
	return nil
}

// reserve occupies the descriptors that targets may be, so that those that Go's runtime opens for itself are above them: a process whose
// poller is replaced ends as soon as the runtime asks it, which a thread of its own does every 10 ms.
func reserve() error {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC) // needs no file
	if err != nil {
		return err
	}
	for descriptor := firstDescriptor; descriptor <= lastDescriptor; descriptor++ {
		if _, err := unix.FcntlInt(uintptr(descriptor), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
			continue
		}
		if err := unix.Dup3(event, descriptor, unix.O_CLOEXEC); err != nil {
			return err
		}
	}
	return nil
}

// open opens each one, with a descriptor that is no target and that execve(2) closes.
func (p placements) open(openOne func(name string) (int, error)) error {
	for index := range p {
		descriptor, err := openOne(p[index].name)
		if err != nil {
			return err
		}
		p[index].descriptor, err = unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, lastDescriptor+1)
		_ = unix.Close(descriptor)
		if err != nil {
			return err
		}
	}
	return nil
}

// place gives the command these descriptors, all of which were reserved.
func (p placements) place() error {
	for _, one := range p {
		if err := unix.Dup3(one.descriptor, one.target, 0); err != nil {
			return fmt.Errorf("descriptor %d: %w", one.target, err)
		}
	}
	return nil
}

func openTap(name string) (int, error) {
	descriptor, err := tap.Open(name)
	if err != nil {
		return -1, fmt.Errorf("cannot open the tap: %w", err)
	}
	return descriptor, nil
}

// listen makes a unix socket that waits for clients. One that an earlier VMM has left there is removed.
func listen(path string) (int, error) {
	if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return -1, fmt.Errorf("cannot remove socket %s: %w", path, err)
	}
	descriptor, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err = unix.Bind(descriptor, &unix.SockaddrUnix{Name: path}); err == nil {
		err = unix.Listen(descriptor, listenBacklog)
	}
	if err != nil {
		_ = unix.Close(descriptor)
		return -1, fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	return descriptor, nil
}

// connect makes a unix socket that is connected to the one that listens at path.
func connect(path string) (int, error) {
	descriptor, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(descriptor, &unix.SockaddrUnix{Name: path}); err != nil {
		_ = unix.Close(descriptor)
		return -1, fmt.Errorf("cannot connect to %s: %w", path, err)
	}
	return descriptor, nil
}
