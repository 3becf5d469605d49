package main

import (
	"errors"
	"io"
	"os"

	"github.com/pkg/sftp"
)

// stdio is the SSH channel: the agent passes its bytes on.
type stdio struct{}

func (stdio) Read(p []byte) (int, error)  { return os.Stdin.Read(p) }
func (stdio) Write(p []byte) (int, error) { return os.Stdout.Write(p) }
func (stdio) Close() error                { return os.Stdout.Close() }

// serveSftp serves the file system as this process's user. Relative paths are below the working directory.
func serveSftp() {
	// Its buffers are used again: a guest collects garbage slowly where its processor is emulated.
	server, err := sftp.NewServer(stdio{}, sftp.WithAllocator())
	if err == nil {
		err = server.Serve()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		fail(1, err.Error())
	}
}
