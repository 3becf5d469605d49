package main

import (
	"io"
	"net"
	"os"
	"time"
)

const dialDeadline = 20 * time.Second

// dial connects, writes one byte to say so, and copies both ways. Each direction ends on its own.
func dial(network, address, port string) {
	if network == "tcp" {
		address = net.JoinHostPort(address, port)
	}
	conn, err := net.DialTimeout(network, address, dialDeadline)
	if err != nil {
		fail(1, err.Error())
	}
	if _, err := os.Stdout.Write([]byte{0}); err != nil {
		os.Exit(1)
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.Copy(conn, os.Stdin)
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}()
	_, err = io.Copy(os.Stdout, conn)
	os.Stdout.Close()
	if err != nil {
		os.Exit(1)
	}
	<-sent
}
