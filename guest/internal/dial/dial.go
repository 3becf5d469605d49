// Package dial connects the host to ports of the sandbox's loopback interface, which no network reaches.
package dial

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
	"releap/guest/internal/session"
	"releap/guest/internal/wire"
)

var buffers = sync.Pool{New: func() interface{} { b := make([]byte, 32*1024); return &b }}

// connection is one connection to a server, and the stream that carries it.
type connection struct {
	stream *session.Stream
	file   *os.File
	stop   chan struct{}
	once   sync.Once
}

// Run connects a stream with a port of the loopback interface.
func Run(stream *session.Stream, port int, log func(string)) error {
	file, err := connect(port)
	if err != nil {
		return err
	}
	return Carry(stream, file, log)
}

// Carry joins a stream and a connected socket, which it closes. END on channel 2 says that the connection exists. Then channels
// 0 and 1 carry the bytes, and END on them the close of that direction. The result follows once both are closed.
func Carry(stream *session.Stream, file *os.File, log func(string)) error {
	c := &connection{stream: stream, file: file, stop: make(chan struct{})}
	defer file.Close()
	stream.End(wire.Stderr)
	go func() {
		select {
		case <-stream.Done():
			c.abort()
		case <-c.stop:
		}
	}()
	ended := make(chan error, 2)
	for _, half := range []func() error{c.upload, c.download} {
		half := half
		go func() {
			err := error(fault.New(fault.Internal, "the agent gave up on a connection"))
			defer func() { ended <- err }()
			defer fault.Guard(log, "dial")
			err = half()
		}()
	}
	var failed error
	for range []int{0, 1} {
		if err := <-ended; err != nil {
			c.abort()
			if failed == nil {
				failed = err
			}
		}
	}
	c.abort()
	if failed != nil {
		// The server gets a reset as well: to end the connection properly would say that it had received all.
		c.control(func(fd int) error {
			return syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
		})
		return fault.New(fault.Cancelled, "the connection was reset: "+failed.Error())
	}
	w := &jsonlite.Writer{}
	stream.Result(w.Open('{').Close('}'))
	return nil
}

// abort wakes both directions.
func (c *connection) abort() {
	c.once.Do(func() {
		close(c.stop)
		_ = c.file.SetDeadline(time.Unix(1, 0))
	})
}

// upload carries what the host sends to the server.
func (c *connection) upload() error {
	for {
		data, err := c.stream.Receive(c.stop)
		switch {
		case err == io.EOF:
			if err := c.control(func(fd int) error { return syscall.Shutdown(fd, syscall.SHUT_WR) }); !errors.Is(err, syscall.ENOTCONN) {
				return err
			}
			return nil
		case err != nil:
			return err
		case data == nil:
			return session.ErrClosed
		}
		if _, err := c.file.Write(data); err != nil {
			return err
		}
		c.stream.Consumed(len(data))
	}
}

// download carries what the server sends to the host.
func (c *connection) download() error {
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	for {
		credit := c.stream.Credit(wire.Stdout, c.stop)
		if credit == 0 {
			return session.ErrClosed
		}
		n, err := c.file.Read((*buffer)[:credit])
		if n > 0 {
			c.stream.Put(wire.Stdout, (*buffer)[:n])
		}
		if err == io.EOF {
			c.stream.End(wire.Stdout)
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (c *connection) control(do func(fd int) error) error {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) { err = do(int(fd)) })
	if failed != nil {
		return failed
	}
	return err
}
