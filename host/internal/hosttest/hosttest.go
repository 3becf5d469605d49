// Package hosttest has what the tests of several packages need.
package hosttest

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"testing"
)

// NeedsRoot skips a test that cannot run as another user.
func NeedsRoot(t *testing.T, why string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: " + why)
	}
}

// Start starts a process that runs until its standard input ends, which is when the test does, and gives its input and its output.
func Start(t *testing.T, child *exec.Cmd) (io.WriteCloser, *bufio.Reader) {
	t.Helper()
	input, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close()
		_ = child.Wait()
	})
	return input, bufio.NewReader(output)
}
