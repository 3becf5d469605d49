package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gorilla/websocket"

	"releap/guest/internal/process"
)

const (
	terminalsMax = 64
	// scrollMax is what a terminal keeps of its output for the next client. While clients are connected, the slowest one
	// slows the terminal.
	scrollMax = 256 << 10
	// lastWords is how long output of background processes is read after the shell has ended.
	lastWords = 200 * time.Millisecond
)

type terminals struct{ *registry[*terminal] }

type terminalInfo struct {
	ID        string            `json:"id"`
	Cwd       string            `json:"cwd"`
	Envs      map[string]string `json:"envs"`
	Cols      int               `json:"cols"`
	Rows      int               `json:"rows"`
	CreatedAt string            `json:"createdAt"`
	Active    bool              `json:"active"`
	LazyStart bool              `json:"lazyStart"`
}

// terminal is a pseudo-terminal with a shell.
type terminal struct {
	output *output
	cmd    *exec.Cmd
	user   process.User
	done   chan struct{}

	mu      sync.Mutex
	info    terminalInfo
	started bool
	deleted bool
	master  *os.File
	exit    int
	failed  string
}

func (t *toolbox) addTerminals() {
	all := terminals{newRegistry[*terminal]("PTY session", terminalsMax)}
	all.giveWay = func(old *terminal) bool {
		ended := old.hasEnded()
		if ended {
			old.output.forget()
		}
		return ended
	}
	t.add("POST", "process/pty", all.create)
	t.add("GET", "process/pty", all.list)
	t.add("GET", "process/pty/create-connect", all.createConnected)
	t.add("GET", "process/pty/*", all.with(func(c *call, one *terminal) error { return c.send(http.StatusOK, one.describe()) }))
	t.add("DELETE", "process/pty/*", all.with(func(c *call, one *terminal) error {
		all.remove(one.info.ID, one)
		one.end()
		return c.send(http.StatusOK, object{"message": "deleted"})
	}))
	t.add("POST", "process/pty/*/resize", all.with(resize))
	t.add("GET", "process/pty/*/connect", all.connect)
}

type size struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

func (s size) check() error {
	if s.Cols < 1 || s.Cols > 4096 || s.Rows < 1 || s.Rows > 4096 {
		return badRequest("cols and rows must be 1 to 4096")
	}
	return nil
}

// wantedTerminal is the body of a create.
type wantedTerminal struct {
	ID        string            `json:"id"`
	Cwd       string            `json:"cwd"`
	Envs      map[string]string `json:"envs"`
	LazyStart bool              `json:"lazyStart"`
	size
}

func (all terminals) create(c *call) error {
	body := wantedTerminal{size: size{80, 24}}
	if err := c.body(&body); err != nil {
		return err
	}
	if _, err := all.make(c, body); err != nil {
		return err
	}
	return c.send(http.StatusCreated, object{"sessionId": body.ID})
}

func (all terminals) make(c *call, body wantedTerminal) (*terminal, error) {
	if err := checkName("id", body.ID); err != nil {
		return nil, err
	}
	if err := body.size.check(); err != nil {
		return nil, err
	}
	return all.add(body.ID, func() (*terminal, error) {
		one, err := c.newTerminal(body.Cwd, body.Envs)
		if err != nil {
			return nil, err
		}
		one.info = terminalInfo{
			ID: body.ID, Cwd: one.cmd.Dir, Envs: body.Envs, Cols: body.Cols, Rows: body.Rows,
			CreatedAt: time.Now().UTC().Format(time.RFC3339Nano), LazyStart: body.LazyStart,
		}
		if one.info.Envs == nil {
			one.info.Envs = map[string]string{}
		}
		if body.LazyStart {
			return one, nil
		}
		return one, one.start()
	})
}

func (all terminals) list(c *call) error {
	infos := []terminalInfo{}
	for _, one := range all.all() {
		infos = append(infos, one.describe())
	}
	return c.send(http.StatusOK, object{"sessions": infos})
}

// newTerminal prepares a shell on a terminal: that of the environment, or the first that exists.
func (c *call) newTerminal(cwd string, envs map[string]string) (*terminal, error) {
	names := []string{"bash", "sh"}
	if own := c.set.Env["SHELL"]; own != "" {
		names = append([]string{own}, names...)
	}
	path, err := c.firstProgram(names...)
	if err != nil {
		return nil, err
	}
	all := map[string]string{"TERM": "xterm-256color"}
	if _, ok := c.set.Env["TERM"]; ok {
		delete(all, "TERM")
	}
	for name, value := range envs {
		all[name] = value
	}
	cmd, err := c.command(cwd, all, path)
	if err != nil {
		return nil, err
	}
	user, err := c.user()
	if err != nil {
		return nil, err
	}
	return &terminal{output: newOutput(scrollMax), cmd: cmd, user: user, done: make(chan struct{})}, nil
}

func (one *terminal) describe() terminalInfo {
	one.mu.Lock()
	defer one.mu.Unlock()
	info := one.info
	info.Active = one.started && !one.hasEnded()
	return info
}

func (one *terminal) hasEnded() bool {
	select {
	case <-one.done:
		return true
	default:
		return false
	}
}

// start the shell, once.
func (one *terminal) start() error {
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.started || one.deleted {
		return nil
	}
	master, slave, err := process.OpenTerminal(uint16(one.info.Rows), uint16(one.info.Cols), one.user)
	if err != nil {
		return err
	}
	end := os.NewFile(uintptr(slave), "terminal")
	defer end.Close()
	one.cmd.Stdin, one.cmd.Stdout, one.cmd.Stderr = end, end, end
	one.cmd.SysProcAttr.Setctty = true
	if err := one.cmd.Start(); err != nil {
		syscall.Close(master)
		return err
	}
	one.master, one.started = os.NewFile(uintptr(master), "terminal"), true
	go one.run()
	return nil
}

func (one *terminal) run() {
	pumped := make(chan struct{})
	go func() {
		defer close(pumped)
		one.pump()
	}()
	err := one.cmd.Wait()
	one.mu.Lock()
	if state, ok := one.cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
		one.exit = exitCode(state)
		if state.Signaled() {
			one.failed = "ended by " + process.SignalName(state.Signal())
		}
	} else if err != nil {
		one.failed = err.Error()
	}
	one.mu.Unlock()
	// What runs in the background may hold the terminal open.
	select {
	case <-pumped:
	case <-time.After(lastWords):
	}
	one.master.Close()
	<-pumped
	one.output.end()
	close(one.done)
}

func (one *terminal) pump() {
	buffer := make([]byte, readSize)
	for {
		n, err := one.master.Read(buffer)
		one.output.append(stdout, append([]byte(nil), buffer[:n]...))
		if err != nil {
			return // EIO: no process has the terminal open
		}
		one.output.awaitReaders()
	}
}

// end the shell and all its jobs.
func (one *terminal) end() {
	one.mu.Lock()
	one.deleted = true
	started := one.started
	one.mu.Unlock()
	one.output.end()
	if started {
		if !one.hasEnded() {
			killSession(one.cmd.Process.Pid)
		}
		<-one.done
	}
	one.output.forget()
}

func resize(c *call, one *terminal) error {
	var wanted size
	if err := c.body(&wanted); err != nil {
		return err
	}
	if err := wanted.check(); err != nil {
		return err
	}
	one.mu.Lock()
	one.info.Cols, one.info.Rows = wanted.Cols, wanted.Rows
	master := one.master
	one.mu.Unlock()
	if master != nil {
		if raw, err := master.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = process.Resize(int(fd), uint16(wanted.Rows), uint16(wanted.Cols)) })
		}
	}
	return c.send(http.StatusOK, one.describe())
}

type control struct {
	Type       string `json:"type"`
	Status     string `json:"status"`
	Error      string `json:"error,omitempty"`
	ExitCode   *int   `json:"exitCode,omitempty"`
	ExitReason string `json:"exitReason,omitempty"`
}

const (
	// Clients that offer it get the exit code in a message before the close frame too: not every client can read the reason
	// of a close.
	exitControl = "X-Daytona-Pty-Exit-Control"
	// Prefix of the offer that carries the environment, as base64url of a JSON object.
	envsOffer = "X-Daytona-Pty-Envs~"
)

func (all terminals) connect(c *call) error {
	one, failed := all.find(c.params[0])
	return c.carry(one, failed)
}

// createConnected creates a terminal and connects to it, in one request.
func (all terminals) createConnected(c *call) error {
	if !websocket.IsWebSocketUpgrade(c.r) { // a terminal that was created for a plain request would have no client
		_, err := c.upgrade()
		return err
	}
	wanted, err := wantedOf(c.r)
	if err != nil {
		return c.carry(nil, err)
	}
	return c.carry(all.make(c, wanted))
}

// wantedOf reads the query, and the variables that a client offers as a subprotocol.
func wantedOf(r *http.Request) (wantedTerminal, error) {
	query := r.URL.Query()
	wanted := wantedTerminal{ID: query.Get("id"), Cwd: query.Get("cwd"), size: size{80, 24}}
	for name, into := range map[string]*int{"cols": &wanted.Cols, "rows": &wanted.Rows} {
		text := query.Get(name)
		if text == "" {
			continue
		}
		number, err := strconv.Atoi(text)
		if err != nil {
			return wanted, badRequest("%s is %q, and must be a number from 1 to 4096", name, text)
		}
		*into = number
	}
	for _, offer := range websocket.Subprotocols(r) {
		if !strings.HasPrefix(offer, envsOffer) {
			continue
		}
		data, err := base64.RawURLEncoding.DecodeString(offer[len(envsOffer):])
		if err == nil {
			err = json.Unmarshal(data, &wanted.Envs)
		}
		if err != nil {
			return wanted, badRequest("the subprotocol %s must be base64url of a JSON object of texts: %v", envsOffer, err)
		}
	}
	return wanted, nil
}

func offers(r *http.Request, subprotocol string) bool {
	for _, offer := range websocket.Subprotocols(r) {
		if offer == subprotocol {
			return true
		}
	}
	return false
}

// carry a terminal over a WebSocket, or why there is none. After its shell has ended, the close frame has the exit code.
func (c *call) carry(one *terminal, failed error) error {
	s, err := c.upgrade()
	if err != nil {
		if failed != nil {
			return failed
		}
		return err
	}
	if failed == nil {
		failed = one.start()
	}
	if failed != nil {
		go s.receive(func(int, []byte) error { return nil })
		_, text := statusOf(failed)
		_ = s.sendJSON(control{Type: "control", Status: "error", Error: text})
		s.finish(websocket.ClosePolicyViolation, reason(object{"error": text}))
		return errAnswered
	}
	r := one.output.read()
	defer r.close()
	if s.sendJSON(control{Type: "control", Status: "connected"}) != nil {
		return errAnswered
	}
	go s.receive(func(_ int, data []byte) error { return one.write(data) })
	for {
		chunks, ok := r.take(s.gone)
		if !ok {
			break
		}
		if len(chunks) == 0 {
			return errAnswered
		}
		for _, part := range chunks {
			if s.send(websocket.BinaryMessage, part.data) != nil {
				return errAnswered
			}
		}
	}
	if r.wasLost() {
		s.finish(websocket.ClosePolicyViolation, reason(object{"error": "the client did not read the terminal's output"}))
		return errAnswered
	}
	<-one.done
	one.mu.Lock()
	code, failure := one.exit, one.failed
	one.mu.Unlock()
	end := object{"exitCode": code}
	if failure != "" {
		end["exitReason"] = failure
	}
	if offers(c.r, exitControl) {
		_ = s.sendJSON(control{Type: "control", Status: "exited", ExitCode: &code, ExitReason: failure})
	}
	s.finish(websocket.CloseNormalClosure, reason(end))
	return errAnswered
}

func reason(body object) string {
	data, _ := json.Marshal(body)
	return string(data)
}

// write input. A program that does not read its terminal loses its client rather than holding it.
func (one *terminal) write(data []byte) error {
	one.mu.Lock()
	master := one.master
	one.mu.Unlock()
	if master == nil {
		return errors.New("the terminal has not started")
	}
	_ = master.SetWriteDeadline(time.Now().Add(writePatience))
	if _, err := master.Write(data); errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil // a shell that has just ended reads no more, and its client is still told how it has ended
}
