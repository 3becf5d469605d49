package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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

// shell is the process of a session. It reads its commands from standard input. Each has named pipes for its own input and
// outputs, and descriptor 3 tells when it begins and ends.
type shell struct {
	cmd    *exec.Cmd
	stdin  *os.File
	told   chan string // lines of descriptor 3
	folder string
	user   process.User
	ended  chan struct{}

	mu   sync.Mutex
	exit int
}

func startShell(c *call) (*shell, error) {
	path, err := c.firstProgram("bash", "sh")
	if err != nil {
		return nil, err
	}
	cmd, err := c.command("", nil, path)
	if err != nil {
		return nil, err
	}
	user, err := c.user()
	if err != nil {
		return nil, err
	}
	folder, err := makePipeFolder(user)
	if err != nil {
		return nil, err
	}
	s := &shell{cmd: cmd, folder: folder, user: user, told: make(chan string, 16), ended: make(chan struct{})}
	if err := s.start(); err != nil {
		os.RemoveAll(folder)
		return nil, err
	}
	return s, nil
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

func (s *shell) start() error {
	in, stdin, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	told, tell, err := os.Pipe()
	if err != nil {
		stdin.Close()
		return err
	}
	defer tell.Close()
	s.stdin, s.cmd.Stdin, s.cmd.ExtraFiles = stdin, in, []*os.File{tell}
	if err := s.cmd.Start(); err != nil {
		stdin.Close()
		told.Close()
		return err
	}
	go s.listen(told)
	go func() {
		_ = s.cmd.Wait()
		if state, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
			s.mu.Lock()
			s.exit = exitCode(state)
			s.mu.Unlock()
		}
		close(s.ended)
	}()
	return nil
}

func (s *shell) listen(told *os.File) {
	defer told.Close()
	lines := bufio.NewScanner(told)
	lines.Buffer(make([]byte, 256), 256)
	for lines.Scan() {
		select {
		case s.told <- lines.Text():
		case <-s.ended:
			return
		}
	}
}

func (s *shell) status() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strconv.Itoa(s.exit)
}

// kill all processes of the session.
func (s *shell) kill() { killSession(s.cmd.Process.Pid) }

func (s *shell) close() {
	s.stdin.Close()
	_ = os.RemoveAll(s.folder)
}

// run one command to its end, or to that of the shell.
func (s *shell) run(command *sessionCommand) {
	pipes, err := s.openPipes(command)
	if err != nil {
		command.output.append(stderr, []byte("releap: the command cannot be started: "+err.Error()+"\n"))
		command.finish(126)
		return
	}
	defer pipes.close()
	// `command` keeps a syntax error from ending the shell. Descriptor 3 is not the command's.
	script := fmt.Sprintf("{ echo 's %s' >&3; command eval %s 3>&-; } <%s >%s 2>%s\necho \"e %s $?\" >&3\n",
		command.id, quote(command.text), pipes.stdin, pipes.path("out"), pipes.path("err"), command.id)
	go func() { _, _ = io.WriteString(s.stdin, script) }() // it fails when the shell ends
	code := s.await(command, pipes)
	pipes.drain()
	command.finish(code)
}

// await the end of the command.
func (s *shell) await(command *sessionCommand, pipes *pipes) int {
	for {
		select {
		case line := <-s.told:
			fields := strings.Fields(line)
			if len(fields) < 2 || fields[1] != command.id {
				continue
			}
			if fields[0] == "s" {
				pipes.begun()
				command.begin(pipes)
			} else if code, err := strconv.Atoi(fields[len(fields)-1]); err == nil && len(fields) == 3 {
				return code
			}
		case <-s.ended:
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.exit
		}
	}
}

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

// quote a word for a POSIX shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// killSession ends all processes of a session (setsid(2)), those in other process groups as well. Processes that fork meanwhile
// are found in a further round.
func killSession(leader int) {
	for round := 0; round < 10; round++ {
		endGroup(leader)
		found := 0
		entries, _ := os.ReadDir("/proc")
		for _, entry := range entries {
			pid, err := strconv.Atoi(entry.Name())
			if err != nil || !isOfSession(pid, leader) {
				continue
			}
			found++
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if found == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// isOfSession reads field 6 of proc(5)'s stat; the name in field 2 may have any bytes. A dead process counts no more.
func isOfSession(pid, leader int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	return len(fields) > 3 && fields[0] != "Z" && fields[0] != "X" && fields[3] == strconv.Itoa(leader)
}
