package main

import (
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"releap/guest/internal/agent"
)

const (
	prSetChildSubreaper = 36
)

// toolboxVariable names the toolbox daemon, as there is no system disk here.
const toolboxVariable = "RELEAP_TOOLBOXD"

// serve a Unix socket, one connection after the other as a virtio port would have them.
func serve(path string) error {
	_ = os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	defer listener.Close()
	// Orphans come to us, as to PID 1.
	_, _, _ = syscall.Syscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
	log := func(text string) { os.Stderr.WriteString(text + "\n") }
	ended := make(chan struct{})
	a := agent.New(nil, false, func() { close(ended) }, log)
	if path := os.Getenv(toolboxVariable); path != "" {
		a.UseToolbox(path)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	server := a.Server()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if err := server.Serve(conn); err != nil && err != io.EOF {
				log("agent: " + err.Error())
			}
			conn.Close()
		}
	}()
	select {
	case <-ended:
	case <-signals:
	}
	return nil
}
