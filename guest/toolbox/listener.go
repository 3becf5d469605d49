package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// preambleMax bounds the settings of a connection: the environment of a sandbox is at most some megabytes.
const preambleMax = 8 << 20

// settings are those of the sandbox at the time of a connection: a fork may have others than its origin.
type settings struct {
	Env  map[string]string `json:"env"`
	User string            `json:"user"`
	Dir  string            `json:"dir"`
}

// listener accepts the connections that the agent passes over a socket.
type listener struct {
	file    *os.File
	control *net.UnixConn
}

func newListener(fd int) (*listener, error) {
	file := os.NewFile(uintptr(fd), "control")
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("standard input is not the agent's socket: %w", err)
	}
	control, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.New("standard input is not a Unix socket")
	}
	return &listener{file: file, control: control}, nil
}

func (l *listener) Accept() (net.Conn, error) {
	var data [1]byte
	rights := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := l.control.ReadMsgUnix(data[:], rights)
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	messages, err := unix.ParseSocketControlMessage(rights[:oobn])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("a connection without a descriptor: %v", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("a connection without a descriptor: %v", err)
	}
	file := os.NewFile(uintptr(fds[0]), "connection")
	defer file.Close()
	inner, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	return &connection{Conn: inner}, nil
}

func (l *listener) Close() error   { return l.control.Close() }
func (l *listener) Addr() net.Addr { return l.control.LocalAddr() }

// connection reads the settings before the first request.
type connection struct {
	net.Conn
	once     sync.Once
	settings settings
	err      error
}

func (c *connection) Read(p []byte) (int, error) {
	c.once.Do(func() { c.err = c.readSettings() })
	if c.err != nil {
		return 0, c.err
	}
	return c.Conn.Read(p)
}

func (c *connection) readSettings() error {
	var size [4]byte
	if _, err := io.ReadFull(c.Conn, size[:]); err != nil {
		return err
	}
	length := binary.BigEndian.Uint32(size[:])
	if length > preambleMax {
		return fmt.Errorf("settings of %d bytes", length)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(c.Conn, body); err != nil {
		return err
	}
	return json.Unmarshal(body, &c.settings)
}
