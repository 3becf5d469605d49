package port

import (
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A named pipe reads like the port does: nothing without a writer, EAGAIN with one that is silent.
func openPipe(t *testing.T) (*Port, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "port")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	const edge = 1 << 31
	ep, err := watch(fd, syscall.EPOLLIN|syscall.EPOLLHUP|edge)
	if err != nil {
		t.Fatal(err)
	}
	// Neither is closed: a reader that still waits would continue with the next test's file of the same number.
	return &Port{fd: fd, readable: ep}, path
}

func connect(t *testing.T, path string) *os.File {
	t.Helper()
	host, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	return host
}

func read(p *Port) chan string {
	said := make(chan string, 8)
	go func() {
		for buf := make([]byte, 64); ; {
			n, err := p.Read(buf)
			switch {
			case n > 0:
				said <- string(buf[:n])
			case err == io.EOF:
				said <- "EOF"
			default:
				return
			}
		}
	}()
	return said
}

func expect(t *testing.T, said chan string, want string) {
	t.Helper()
	select {
	case got := <-said:
		if got != want {
			t.Fatalf("read %q, not %q", got, want)
		}
	case <-time.After(60 * time.Second):
		t.Fatalf("never read %q", want)
	}
}

// replaced gives what a port reads whose host has said a text and was then replaced by another. A machine that does other
// things may take longer for that than the port waits: then all of it is started again.
func replaced(t *testing.T, text string) (said chan string, host *os.File) {
	t.Helper()
	for tries := 50; ; tries-- {
		p, path := openPipe(t)
		host := connect(t, path)
		said := read(p)
		host.WriteString(text)
		expect(t, said, text)
		began := time.Now()
		host.Close()
		host = connect(t, path)
		if time.Since(began) < returnGrace {
			return said, host
		}
		if tries == 0 {
			t.Fatal("no host came in time")
		}
	}
}

func TestTellsOnceThatTheHostHasGone(t *testing.T) {
	p, path := openPipe(t)
	host := connect(t, path)
	said := read(p)
	host.WriteString("one")
	expect(t, said, "one")
	host.Close()
	expect(t, said, "EOF")
	host = connect(t, path)
	host.WriteString("two")
	expect(t, said, "two")
	// What it said is no proof that it is there: of one that goes before that is seen nothing is told.
	for end := time.Now().Add(60 * time.Second); p.gone && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	host.Close()
	expect(t, said, "EOF")
}

func TestAHostThatComesAtOnceIsNotTakenForOneThatHasGone(t *testing.T) {
	said, host := replaced(t, "one")
	host.WriteString("HELLO")
	expect(t, said, "HELLO")
	host.WriteString("more")
	expect(t, said, "more")
}

func TestAHostThatComesAtOnceAndIsSilentHasNotGone(t *testing.T) {
	said, host := replaced(t, "HELLO of the next, before the end of this one is known")
	time.Sleep(3 * returnGrace)
	host.WriteString("more")
	expect(t, said, "more")
}

// The grace period for the former host ends when the HELLO of the next one has arrived, and its connect event has not.
func TestAHostIsNotTakenForGoneByTheGraceOfTheOneBefore(t *testing.T) {
	p, path := openPipe(t)
	host := connect(t, path)
	host.WriteString("HELLO")
	host.Close()
	p.away = true
	buf := make([]byte, 64)
	if n, err := p.Read(buf); err != nil || string(buf[:n]) != "HELLO" {
		t.Fatalf("read %q, %v", buf[:n], err)
	}
	began := time.Now()
	if n, err := p.Read(buf); err != io.EOF {
		t.Fatalf("read %q, %v", buf[:n], err)
	}
	if time.Since(began) < returnGrace {
		t.Fatal("a host that has just said HELLO was not waited for")
	}
}
