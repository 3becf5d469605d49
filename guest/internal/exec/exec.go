// Package exec runs a command for the host: streams, terminal, timeout.
package exec

import (
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
	"releap/guest/internal/process"
	"releap/guest/internal/session"
	"releap/guest/internal/wire"
)

// Request as read from the OPEN message.
type Request struct {
	Argv    []string
	Dir     string
	Env     map[string]string
	User    string
	Stdin   bool
	TTY     bool
	Rows    uint16
	Cols    uint16
	Timeout time.Duration
	Grace   time.Duration
}

// Defaults come from the sandbox's configuration.
type Defaults struct {
	Dir  string
	User string
	Env  map[string]string
}

const maxTimeout = int64(30 * 24 * time.Hour / time.Millisecond)

// Parse the parameters of an exec.
func Parse(v jsonlite.Value, d Defaults) (r Request, err error) {
	if r.Argv, err = v.Get("argv").Texts("argv"); err != nil {
		return r, err
	}
	shell, err := v.Get("shell").Text("shell")
	if err != nil {
		return r, err
	}
	switch {
	case (len(r.Argv) > 0) == v.Get("shell").Present():
		return r, fault.New(fault.Invalid, "exec needs either argv (at least one string) or shell")
	case shell != "" || len(r.Argv) == 0:
		r.Argv = []string{"/bin/sh", "-c", shell}
	}
	for _, arg := range r.Argv {
		for i := 0; i < len(arg); i++ {
			if arg[i] == 0 {
				return r, fault.New(fault.Invalid, "arguments must not contain NUL")
			}
		}
	}
	if r.Dir, err = v.Get("cwd").Text("cwd"); err != nil {
		return r, err
	}
	if r.Dir == "" {
		r.Dir = d.Dir
	} else if r.Dir[0] != '/' {
		r.Dir = d.Dir + "/" + r.Dir
	}
	if r.User, err = v.Get("user").Text("user"); err != nil {
		return r, err
	}
	if r.User == "" {
		r.User = d.User
	}
	own, err := v.Get("env").TextMap("env")
	if err != nil {
		return r, err
	}
	r.Env = make(map[string]string, len(d.Env)+len(own))
	for k, val := range d.Env {
		r.Env[k] = val
	}
	for k, val := range own {
		r.Env[k] = val
	}
	if r.Stdin, err = v.Get("stdin").Flag("stdin"); err != nil {
		return r, err
	}
	if tty := v.Get("pty"); tty.Present() {
		r.TTY = true
		if r.Rows, r.Cols, err = Size(tty); err != nil {
			return r, err
		}
	}
	ms, err := v.Get("timeout_ms").Int("timeout_ms", 0, 0, maxTimeout)
	if err != nil {
		return r, err
	}
	grace, err := v.Get("kill_grace_ms").Int("kill_grace_ms", 2000, 0, 60000)
	r.Timeout, r.Grace = time.Duration(ms)*time.Millisecond, time.Duration(grace)*time.Millisecond
	return r, err
}

// Size reads {rows, cols}.
func Size(v jsonlite.Value) (rows, cols uint16, err error) {
	r, err := v.Get("rows").Int("rows", 24, 1, 4096)
	if err != nil {
		return 0, 0, err
	}
	c, err := v.Get("cols").Int("cols", 80, 1, 4096)
	return uint16(r), uint16(c), err
}

// Runner keeps the commands that run, by stream.
type Runner struct {
	table *process.Table
	log   func(string)
	mu    sync.Mutex
	live  map[*session.Stream]*command
}

// NewRunner starts commands in the table.
func NewRunner(table *process.Table, log func(string)) *Runner {
	return &Runner{table: table, log: log, live: map[*session.Stream]*command{}}
}

type command struct {
	proc    *process.Process
	stream  *session.Stream
	master  *os.File // of the terminal, when there is one
	outputs []*os.File
	input   *os.File
	pumps   sync.WaitGroup
}

// Run answers one exec stream. It returns when the command has ended.
func (r *Runner) Run(stream *session.Stream, req Request) {
	user, err := process.LookupUser("", req.User)
	if err == nil {
		err = process.CheckDir(req.Dir)
	}
	if err != nil {
		stream.Fail(err)
		return
	}
	env := process.Environment(req.Env, user, req.TTY)
	path, bad := process.Find(req.Argv[0], env, req.Dir)
	var c *command
	if bad == nil {
		spec := process.Spec{Path: path, Argv: req.Argv, Env: env, Dir: req.Dir, User: user, Terminal: req.TTY}
		c, bad, err = r.start(stream, req, spec)
	}
	if err != nil {
		stream.Fail(err)
		return
	}
	if bad != nil {
		_ = stream.Send(wire.Stderr, []byte("releap: "+bad.Text+"\n"))
		stream.End(wire.Stdout)
		stream.End(wire.Stderr)
		answer(stream, process.Status{Code: bad.Exit}, false, bad.Text)
		return
	}
	r.mu.Lock()
	r.live[stream] = c
	r.mu.Unlock()
	timedOut := c.wait(req)
	r.mu.Lock()
	delete(r.live, stream)
	r.mu.Unlock()
	c.pumps.Wait()
	answer(stream, c.proc.Status(), timedOut, "")
}

func answer(stream *session.Stream, st process.Status, timedOut bool, text string) {
	var w jsonlite.Writer
	w.Open('{').Key("exit_code").Int(int64(st.Code))
	if st.Signal != 0 {
		w.Key("signal").Text(process.SignalName(st.Signal))
	}
	w.Key("timed_out").Flag(timedOut)
	if text != "" {
		w.Key("error").Text(text)
	}
	stream.Result(w.Close('}'))
}

// wait for the end, or bring it about: after the timeout, or when the host cancels. A mere loss of the
// connection ends nothing; the command runs on unheard, as after a restore of its memory elsewhere.
func (c *command) wait(req Request) (timedOut bool) {
	var timeout <-chan time.Time
	if req.Timeout > 0 {
		timer := time.NewTimer(req.Timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	closed := c.stream.Done()
	for {
		select {
		case <-c.proc.Done():
			c.drain()
			return false
		case <-timeout:
			c.end(req.Grace)
			return true
		case <-closed:
			if c.stream.Cause() == session.Cancelled {
				c.end(req.Grace)
				return false
			}
			closed = nil
			if c.master != nil {
				c.master.Close() // the line is dead: SIGHUP, as on any terminal
			}
		}
	}
}

func (c *command) end(grace time.Duration) {
	c.proc.SignalGroup(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.proc.Done():
	case <-timer.C:
	}
	c.proc.SignalGroup(syscall.SIGKILL)
	<-c.proc.Done()
	c.drain()
}

// Signal a command by its stream: the process group, or only its leader.
func (r *Runner) Signal(stream *session.Stream, sig syscall.Signal, leaderOnly bool) error {
	c, err := r.find(stream)
	if err != nil {
		return err
	}
	if leaderOnly {
		c.proc.Signal(sig)
	} else {
		c.proc.SignalGroup(sig)
	}
	return nil
}

// Resize the terminal of a command.
func (r *Runner) Resize(stream *session.Stream, rows, cols uint16) error {
	c, err := r.find(stream)
	if err != nil {
		return err
	}
	if c.master == nil {
		return fault.New(fault.Invalid, "that command has no terminal")
	}
	raw, err := c.master.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) { err = process.Resize(int(fd), rows, cols) })
	if failed != nil {
		return fault.New(fault.State, "the terminal is closed")
	}
	return err
}

func (r *Runner) find(stream *session.Stream) (*command, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.live[stream]; c != nil {
		return c, nil
	}
	return nil, fault.New(fault.NotFound, "no command runs on that stream")
}

// Live is how many commands run, for status.
func (r *Runner) Live() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.live)
}

// Target reads the stream number that signal and resize name.
func Target(sess *session.Session, v jsonlite.Value) (*session.Stream, error) {
	id, err := v.Get("stream").Int("stream", 0, 1, 1<<32-1)
	if err != nil {
		return nil, err
	}
	s := sess.Find(uint32(id))
	if s == nil {
		return nil, fault.New(fault.NotFound, "no stream "+strconv.FormatInt(id, 10)+" is open")
	}
	return s, nil
}
