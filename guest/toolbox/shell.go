package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"releap/guest/internal/process"
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
