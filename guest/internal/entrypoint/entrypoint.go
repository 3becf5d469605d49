// Package entrypoint runs the image's own command and keeps its output for the host.
package entrypoint

import (
	"os"
	"sync"
	"syscall"

	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
	"releap/guest/internal/process"
	"releap/guest/internal/session"
	"releap/guest/internal/wire"
)

// Spec of the command, resolved.
type Spec struct {
	Argv []string
	Env  map[string]string
	User string
	Dir  string
	// Stop is the signal that asks it to end.
	Stop syscall.Signal
}

// State of the entrypoint: "none" before it was asked for, "running", "exited", "failed" (did not start).
type State struct {
	Name   string
	PID    int
	Status process.Status
	Reason string
}

// Entrypoint of the sandbox; there is at most one in a boot.
type Entrypoint struct {
	Output *Ring
	table  *process.Table
	log    func(string)
	notify func()

	mu    sync.Mutex
	state State
	proc  *process.Process
	stop  syscall.Signal
}

// New tells notify of every change of state.
func New(table *process.Table, log func(string), notify func()) *Entrypoint {
	return &Entrypoint{Output: NewRing(log), table: table, log: log, notify: notify, state: State{Name: "none"}}
}

// State now.
func (e *Entrypoint) State() State {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state
}

// Describe the state in JSON, as event and status have it.
func (s State) Describe(w *jsonlite.Writer) {
	w.Open('{').Key("state").Text(s.Name)
	if s.PID != 0 {
		w.Key("pid").Int(int64(s.PID))
	}
	if s.Name == "exited" || s.Name == "failed" {
		w.Key("exit_code").Int(int64(s.Status.Code))
	}
	if s.Status.Signal != 0 {
		w.Key("signal").Text(process.SignalName(s.Status.Signal))
	}
	if s.Reason != "" {
		w.Key("reason").Text(s.Reason)
	}
	w.Close('}')
}

func (e *Entrypoint) set(s State) {
	e.mu.Lock()
	e.state = s
	e.mu.Unlock()
	e.notify()
}

// Start the command. Its failure is a state, not an error: the sandbox continues without it.
func (e *Entrypoint) Start(spec Spec) {
	if err := e.start(spec); err != nil {
		code := process.CannotExecute
		if bad, ok := err.(*process.StartError); ok {
			code = bad.Exit
		}
		e.say("the entrypoint cannot start: " + err.Error())
		e.set(State{Name: "failed", Status: process.Status{Code: code}, Reason: err.Error()})
	}
}

func (e *Entrypoint) say(text string) { e.Output.Append(wire.Stderr, []byte("releap: "+text+"\n")) }

func (e *Entrypoint) start(spec Spec) error {
	user, err := process.LookupUser("", spec.User)
	if err != nil {
		return err
	}
	if err := ensureDir(spec.Dir, user); err != nil {
		return err
	}
	env := process.Environment(spec.Env, user, false)
	path, bad := process.Find(spec.Argv[0], env, spec.Dir)
	if bad != nil {
		return bad
	}
	null, err := syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(null)
	var out, errs [2]int
	if err := syscall.Pipe2(out[:], syscall.O_CLOEXEC); err != nil {
		return err
	}
	if err := syscall.Pipe2(errs[:], syscall.O_CLOEXEC); err != nil {
		return err
	}
	proc, bad := e.table.Start(process.Spec{
		Path: path, Argv: spec.Argv, Env: env, Dir: spec.Dir, User: user,
		Files: [3]uintptr{uintptr(null), uintptr(out[1]), uintptr(errs[1])},
	})
	syscall.Close(out[1])
	syscall.Close(errs[1])
	if bad != nil {
		syscall.Close(out[0])
		syscall.Close(errs[0])
		return bad
	}
	e.mu.Lock()
	e.proc, e.stop = proc, spec.Stop
	e.mu.Unlock()
	e.set(State{Name: "running", PID: proc.PID})
	e.pump(out[0], wire.Stdout)
	e.pump(errs[0], wire.Stderr)
	go e.await(proc)
	return nil
}

func (e *Entrypoint) pump(fd int, channel byte) {
	_ = syscall.SetNonblock(fd, true)
	file := os.NewFile(uintptr(fd), "entrypoint")
	go func() {
		defer fault.Guard(e.log, "entrypoint output")
		defer file.Close()
		buf := make([]byte, 16*1024)
		for {
			n, err := file.Read(buf)
			if n > 0 {
				e.Output.Append(channel, buf[:n])
			}
			if err != nil {
				return
			}
		}
	}()
}

func (e *Entrypoint) await(proc *process.Process) {
	defer fault.Guard(e.log, "entrypoint")
	<-proc.Done()
	st := proc.Status()
	e.say("the entrypoint " + st.String())
	e.set(State{Name: "exited", Status: st})
}

// Process that runs, or nil.
func (e *Entrypoint) Process() *process.Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.proc
}

// Ask the process itself to end, with the stop signal of the image; its children are its own responsibility.
func (e *Entrypoint) Ask() {
	e.mu.Lock()
	proc, stop := e.proc, e.stop
	e.mu.Unlock()
	if proc != nil {
		proc.Signal(stop)
	}
}

// Opened and Closed follow the host's connections.
func (e *Entrypoint) Opened(sess *session.Session) { e.Output.Attach(sess) }

// Closed see Opened.
func (e *Entrypoint) Closed(sess *session.Session) { e.Output.Detach(sess) }

// ensureDir makes a missing working directory, as OCI runtimes do, owned by who will work in it.
func ensureDir(dir string, user process.User) error {
	if err := process.CheckDir(dir); fault.Code(err) != fault.NotFound {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chown(dir, int(user.UID), int(user.GID))
}
