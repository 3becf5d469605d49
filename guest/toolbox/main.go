// Command toolboxd serves the toolbox of a sandbox over HTTP: what has state or many files (sessions, terminals, interpreters,
// git, bulk transfers). The agent starts it when it is needed and hands it connections; it listens nowhere, so no process of
// the sandbox can connect to it. It runs as root and starts commands as the sandbox's user.
package main

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"runtime/debug"
	"syscall"
	"time"
)

const (
	// controlFD is a socket over which the agent passes connections.
	controlFD = 0
	// headerPatience bounds how long the headers of a request may take.
	headerPatience = 30 * time.Second
	// idlePatience bounds an idle kept-alive connection; the gateway closes its own sooner.
	idlePatience = 5 * time.Minute
	headerMax    = 64 << 10
	umask        = 0o022
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("toolboxd: ")
	// A small heap is collected rarely: under emulation a collection costs more than the memory.
	debug.SetGCPercent(400)
	listener, err := newListener(controlFD)
	if err != nil {
		log.Fatal(err)
	}
	// That of new files and of commands.
	syscall.Umask(umask)
	removePipes()
	server := newServer(newToolbox())
	// EOF: the agent has ended.
	if err := server.Serve(listener); err != io.EOF {
		log.Fatal(err)
	}
}

func newServer(t *toolbox) *http.Server {
	return &http.Server{
		Handler:           t,
		ReadHeaderTimeout: headerPatience,
		IdleTimeout:       idlePatience,
		MaxHeaderBytes:    headerMax,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
	}
}

type connKey struct{}
