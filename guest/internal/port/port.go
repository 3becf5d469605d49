// Package port is the virtio-serial port that leads to the host.
package port

import (
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// returnGrace is how long a host may be disconnected before that is reported. Connects and disconnects arrive on another
// virtqueue than data: after a pause of the machine, the HELLO of a new host may arrive before the disconnect of the
// former one, and must not be attributed to the former one.
const returnGrace = 100 * time.Millisecond

// Port reads and writes the device. Read returns io.EOF once when the host has been disconnected for a while, and then waits
// for the next host. A host that connects at once sends HELLO, which ends the former session as well. Write blocks without a
// host. Nothing polls: both sleep in epoll_wait, edge-triggered, because a port without a host reports EPOLLHUP
// permanently and a level-triggered wait would spin.
type Port struct {
	fd       int
	readable int
	writable int
	mu       sync.Mutex
	away     bool // disconnected for returnGrace
	gone     bool // and io.EOF was returned
}

// Find waits until the port of that name exists (its driver probes asynchronously) and gives its device path.
func Find(name string, patience time.Duration) (string, error) {
	const class = "/sys/class/virtio-ports"
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		dirs, _ := os.ReadDir(class)
		for _, d := range dirs {
			text, err := os.ReadFile(class + "/" + d.Name() + "/name")
			if err != nil || strings.TrimSpace(string(text)) != name {
				continue
			}
			path := "/dev/" + d.Name()
			if _, err := os.Stat(path); err == nil {
				return path, nil
			}
		}
		if time.Now().After(end) {
			return "", errors.New("no virtio-serial port is named " + name)
		}
	}
}

// Open the device.
func Open(path string) (*Port, error) {
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	p := &Port{fd: fd}
	const edge = 1 << 31 // EPOLLET; syscall's constant is negative, its field unsigned
	if p.readable, err = watch(fd, syscall.EPOLLIN|syscall.EPOLLHUP|edge); err != nil {
		return nil, err
	}
	if p.writable, err = watch(fd, syscall.EPOLLOUT|syscall.EPOLLHUP|edge); err != nil {
		return nil, err
	}
	return p, nil
}

func watch(fd int, events uint32) (int, error) {
	ep, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return -1, err
	}
	return ep, syscall.EpollCtl(ep, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: events, Fd: int32(fd)})
}

func wait(ep int) {
	waitFor(ep, -1)
}

// waitFor tells whether an event came within the time; a negative one is unlimited.
func waitFor(ep int, patience time.Duration) bool {
	var events [1]syscall.EpollEvent
	ms := -1
	if patience >= 0 {
		ms = int(patience / time.Millisecond)
	}
	for {
		if n, err := syscall.EpollWait(ep, events[:], ms); err != syscall.EINTR {
			return n > 0
		}
	}
}

func (p *Port) Read(buf []byte) (int, error) {
	for {
		n, err := syscall.Read(p.fd, buf)
		switch {
		case n > 0:
			// Data may arrive before the connect event, which comes on another virtqueue. An io.EOF between the two would
			// drop a HELLO that was just read, also if the grace period for the former host ends at that time. The grace
			// period starts again.
			p.away = false
			return n, nil
		case err == nil: // no host
			switch {
			case p.gone:
				wait(p.readable)
			case p.away:
				p.gone = true
				return 0, io.EOF
			default:
				// A host that reconnects and is silent causes no event here: check once more before it is reported.
				p.away = !waitFor(p.readable, returnGrace)
			}
		case err == syscall.EAGAIN:
			p.away, p.gone = false, false
			wait(p.readable)
		case err != syscall.EINTR:
			return 0, err
		}
	}
}

// Write writes all of buf; batches of several writers do not mix.
func (p *Port) Write(buf []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	done := 0
	for done < len(buf) {
		n, err := syscall.Write(p.fd, buf[done:])
		switch {
		case n > 0:
			done += n
		case err == nil || err == syscall.EAGAIN:
			wait(p.writable)
		case err != syscall.EINTR:
			return done, err
		}
	}
	return done, nil
}

// TryWrite writes what the device accepts now; nothing during another write.
func (p *Port) TryWrite(buf []byte) (int, error) {
	if !p.mu.TryLock() {
		return 0, nil
	}
	defer p.mu.Unlock()
	for {
		n, err := syscall.Write(p.fd, buf)
		switch {
		case n > 0 || err == nil || err == syscall.EAGAIN:
			if n < 0 {
				n = 0
			}
			return n, nil
		case err != syscall.EINTR:
			return 0, err
		}
	}
}
