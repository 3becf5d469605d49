package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"releap/guest/internal/process"
)

const (
	// pipeFolder has the named pipes of the commands that run; only the sandbox's user may enter a session's folder.
	pipeFolder    = "releap-toolbox"
	inputPatience = 10 * time.Second
	readSize      = 32 << 10
)

// pipes of one command.
type pipes struct {
	folder  string
	prefix  string
	stdin   string // path of the input
	input   *os.File
	mu      sync.Mutex
	writers []*os.File // hold the outputs open until the command has opened them
	readers []*outputPipe
}

type outputPipe struct {
	file   *os.File
	stream byte
	into   *output
	paused chan struct{} // closed when its goroutine has stopped
}

func (s *shell) openPipes(command *sessionCommand) (*pipes, error) {
	p := &pipes{folder: s.folder, prefix: command.id, stdin: "/dev/null"}
	for _, one := range []struct {
		name   string
		stream byte
	}{{"out", stdout}, {"err", stderr}} {
		reader, err := p.make(one.name, s.user, unix.O_RDONLY)
		if err == nil {
			pipe := &outputPipe{file: reader, stream: one.stream, into: command.output, paused: make(chan struct{})}
			p.readers = append(p.readers, pipe)
			var writer *os.File
			if writer, err = openPipe(p.path(one.name), unix.O_WRONLY); err == nil {
				p.writers = append(p.writers, writer)
			}
		}
		if err != nil {
			p.close()
			return nil, err
		}
	}
	if command.async {
		input, err := p.make("in", s.user, unix.O_RDWR)
		if err != nil {
			p.close()
			return nil, err
		}
		p.stdin, p.input = p.path("in"), input
	}
	for _, pipe := range p.readers {
		go pipe.pump()
	}
	return p, nil
}

func (p *pipes) path(name string) string { return filepath.Join(p.folder, p.prefix+"."+name) }

func (p *pipes) make(name string, user process.User, flags int) (*os.File, error) {
	path := p.path(name)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, err
	}
	file, err := openPipe(path, flags)
	if err == nil {
		err = file.Chown(int(user.UID), int(user.GID))
	}
	return file, err
}

// openPipe does not block, and what is opened is waited for by the Go runtime's poller.
func openPipe(path string, flags int) (*os.File, error) {
	fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// begun says that the command has its pipes: their names are not needed any more.
func (p *pipes) begun() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, writer := range p.writers {
		writer.Close()
	}
	p.writers = nil
	if p.folder == "" { // pipes without names
		return
	}
	for _, name := range []string{"in", "out", "err"} {
		_ = os.Remove(p.path(name))
	}
}

func (p *pipes) write(data []byte) error {
	_ = p.input.SetWriteDeadline(time.Now().Add(inputPatience))
	_, err := p.input.Write(data)
	return err
}

// drain takes what the command has written before its end. What its background processes write later is read and dropped.
func (p *pipes) drain() {
	p.begun()
	for _, pipe := range p.readers {
		_ = pipe.file.SetReadDeadline(time.Unix(1, 0))
		<-pipe.paused
		pipe.takeAvailable()
		_ = pipe.file.SetReadDeadline(time.Time{})
	}
}

func (p *pipes) close() {
	p.begun()
	if p.input != nil {
		p.input.Close()
	}
	for _, pipe := range p.readers {
		select {
		case <-pipe.paused:
			go pipe.discard()
		default:
			pipe.file.Close()
		}
	}
}

// closeReaders ends the outputs of a command that has none, or whose processes have all been killed.
func (p *pipes) closeReaders() {
	for _, pipe := range p.readers {
		pipe.file.Close()
	}
}

// pump reads until the end, or until a deadline is set.
func (o *outputPipe) pump() {
	defer close(o.paused)
	buffer := make([]byte, readSize)
	for {
		n, err := o.file.Read(buffer)
		o.into.append(o.stream, append([]byte(nil), buffer[:n]...))
		if err != nil {
			return
		}
	}
}

// takeAvailable reads what is there, without waiting.
func (o *outputPipe) takeAvailable() {
	raw, err := o.file.SyscallConn()
	if err != nil {
		return
	}
	buffer := make([]byte, readSize)
	_ = raw.Control(func(fd uintptr) {
		for {
			n, err := unix.Read(int(fd), buffer)
			if err == unix.EINTR {
				continue
			}
			if n <= 0 {
				return
			}
			o.into.append(o.stream, append([]byte(nil), buffer[:n]...))
		}
	})
}

func (o *outputPipe) discard() {
	defer o.file.Close()
	buffer := make([]byte, readSize)
	for {
		if _, err := o.file.Read(buffer); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// pipeBases are where the folder of all sessions may be. The agent sets TMPDIR only where it is an ordinary process.
func pipeBases() []string {
	if own := os.Getenv("TMPDIR"); own != "" {
		return []string{own}
	}
	return []string{"/run", "/tmp"}
}

// removePipes removes what a daemon that was killed has left.
func removePipes() {
	for _, base := range pipeBases() {
		parent := filepath.Join(base, pipeFolder)
		if info, err := os.Lstat(parent); err == nil && info.IsDir() {
			_ = os.RemoveAll(parent)
		}
	}
}

// makePipeFolder makes a folder that the user may enter, in one that only root may change.
func makePipeFolder(user process.User) (string, error) {
	var failed error
	for _, base := range pipeBases() {
		parent := filepath.Join(base, pipeFolder)
		if failed = os.MkdirAll(parent, 0o711); failed != nil {
			continue
		}
		// In /tmp another user may have made it.
		if info, err := os.Lstat(parent); err != nil || !info.IsDir() || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Getuid()) {
			failed = fmt.Errorf("%s belongs to another user", parent)
			continue
		}
		var folder string
		if folder, failed = os.MkdirTemp(parent, "session-"); failed == nil {
			return folder, os.Chown(folder, int(user.UID), int(user.GID))
		}
	}
	return "", failed
}
