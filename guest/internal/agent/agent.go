// Package agent ties the parts together: it knows every method of the host protocol and the sandbox's state.
package agent

import (
	"os"
	"strings"
	"sync"
	"syscall"

	"releap/guest/internal/boot"
	"releap/guest/internal/dial"
	"releap/guest/internal/docker"
	"releap/guest/internal/entrypoint"
	"releap/guest/internal/exec"
	"releap/guest/internal/fault"
	"releap/guest/internal/freeze"
	"releap/guest/internal/hostkeys"
	"releap/guest/internal/jsonlite"
	"releap/guest/internal/process"
	"releap/guest/internal/session"
	"releap/guest/internal/store"
	"releap/guest/internal/toolbox"
)

// Version of the agent, told in HELLO.
const Version = "0.3.0"

// Agent of one sandbox.
type Agent struct {
	log     func(string)
	pid1    bool
	bootID  string
	table   *process.Table
	freezer *freeze.Freezer // nil outside a micro-VM
	runner  *exec.Runner
	entry   *entrypoint.Entrypoint
	docker  *docker.Engine
	toolbox *toolbox.Daemon
	stores  *store.Mounts
	// Of an SSH server that the sandbox may have.
	hostKeys *hostkeys.Keys
	stop     func() // ends the agent's process where that is not PID 1

	mu         sync.Mutex
	configured bool
	busy       bool          // a configure is under way
	gate       chan struct{} // closed when the last configure or reconfigure that came is done
	defaults   exec.Defaults
	network    *boot.Network
	hostname   string // as the host gave it last
	machineID  string
	session    *session.Session
}

// New agent. freezer may be nil; stop is called after a shutdown when the agent is no PID 1.
func New(freezer *freeze.Freezer, pid1 bool, stop func(), log func(string)) *Agent {
	a := &Agent{log: log, pid1: pid1, freezer: freezer, stop: stop}
	var place process.Place
	if freezer != nil {
		place = freezer
	}
	a.table = process.NewTable(place, log)
	a.runner = exec.NewRunner(a.table, log)
	a.entry = entrypoint.New(a.table, log, a.announce)
	a.docker = docker.New(a.table, log)
	a.toolbox = toolbox.New(a.table, toolbox.Program)
	a.stores = store.New(a.table, log)
	a.hostKeys = hostkeys.New(a.table, log)
	a.defaults = exec.Defaults{Dir: "/"}
	if text, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		a.bootID = strings.TrimSpace(string(text))
	}
	return a
}

// UseToolbox names another toolbox daemon than that of the system disk. Called before the agent serves.
func (a *Agent) UseToolbox(path string) { a.toolbox = toolbox.New(a.table, path) }

// Server that answers the host.
func (a *Agent) Server() *session.Server {
	return &session.Server{Handle: a.handle, Hello: a.hello, Opened: a.opened, Closed: a.closed, Log: a.log}
}

func (a *Agent) hello(w *jsonlite.Writer) {
	a.mu.Lock()
	configured := a.configured
	a.mu.Unlock()
	w.Key("agent").Text(Version).Key("boot_id").Text(a.bootID).Key("configured").Flag(configured)
	w.Key("frozen").Flag(a.freezer != nil && a.freezer.Frozen())
	w.Key("entrypoint")
	a.entry.State().Describe(w)
}

func (a *Agent) opened(sess *session.Session) {
	a.mu.Lock()
	a.session = sess
	a.mu.Unlock()
	a.entry.Opened(sess)
	if a.freezer != nil {
		a.freezer.Heard()
	}
}

func (a *Agent) closed(sess *session.Session) {
	a.mu.Lock()
	if a.session == sess {
		a.session = nil
	}
	a.mu.Unlock()
	a.entry.Closed(sess)
}

// announce the entrypoint's state to the connected host; HELLO has it for later connections.
func (a *Agent) announce() {
	a.mu.Lock()
	sess := a.session
	a.mu.Unlock()
	if sess == nil {
		return
	}
	var w jsonlite.Writer
	w.Open('{').Key("event").Text("entrypoint").Key("entrypoint")
	a.entry.State().Describe(&w)
	sess.Event(w.Close('}'))
}

func (a *Agent) settings() exec.Defaults {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.defaults
}

// thawed refuses what would hang while the sandbox is frozen.
func (a *Agent) thawed() error {
	if a.freezer != nil && a.freezer.Frozen() {
		return fault.New(fault.Frozen, "the sandbox is frozen")
	}
	return nil
}

// handle lets requests run side by side, except that those behind a configure or reconfigure wait for it: a host
// may send them all at once. Freezing and thawing, whose latency clients notice, are tried at once.
func (a *Agent) handle(s *session.Stream, method string, v jsonlite.Value) func() {
	var mine chan struct{}
	a.mu.Lock()
	before := a.gate
	if method == "configure" || method == "reconfigure" {
		mine = make(chan struct{})
		a.gate = mine
	}
	a.mu.Unlock()
	if before != nil {
		select {
		case <-before:
			before = nil
		default:
		}
	}
	if before == nil && a.freezer != nil {
		switch method {
		case "freeze":
			return a.freeze(s, v)
		case "thaw":
			if a.thawAtOnce(s, v) {
				return nil
			}
		case "reconfigure":
			// No process may continue under the old identity, however long this takes.
			a.freezer.Hold()
		}
	}
	return func() {
		if mine != nil {
			defer close(mine)
		}
		if before != nil && method != "status" && method != "shutdown" {
			select {
			case <-before:
			case <-s.Done():
				s.Fail(session.ErrClosed)
				return
			}
		}
		if err := a.call(s, method, v); err != nil {
			s.Fail(err)
		}
	}
}

// call runs one method; nil means that the stream was answered.
func (a *Agent) call(s *session.Stream, method string, v jsonlite.Value) error {
	switch method {
	case "configure":
		return a.configure(s, v)
	case "reconfigure":
		return a.reconfigure(s, v)
	case "exec":
		return a.exec(s, v)
	case "signal":
		return a.signal(s, v)
	case "resize":
		return a.resize(s, v)
	case "read-file", "write-file", "list-dir", "stat", "remove", "make-dir":
		return a.files(s, method, v)
	case "sync":
		syscall.Sync()
	case "rehearse":
		if a.freezer != nil {
			a.freezer.WarmUp()
			answerCapture(nil, &freeze.Capture{})
		}
	case "freeze":
		if work := a.freeze(s, v); work != nil {
			work()
		}
		return nil
	case "thaw":
		return a.thaw(s, v)
	case "slew-clock":
		return a.slewClock(s, v)
	case "dial":
		return a.dial(s, v)
	case "toolbox":
		return a.connectToolbox(s)
	case "mount-store":
		return a.mountStore(s, v)
	case "unmount-store":
		return a.unmountStore(s, v)
	case "status":
		return a.status(s)
	case "shutdown":
		return a.shutdown(s, v)
	default:
		return fault.New(fault.Invalid, "unknown method "+method)
	}
	s.Result(empty())
	return nil
}

func empty() *jsonlite.Writer {
	w := &jsonlite.Writer{}
	return w.Open('{').Close('}')
}

func (a *Agent) exec(s *session.Stream, v jsonlite.Value) error {
	if err := a.thawed(); err != nil {
		return err
	}
	req, err := exec.Parse(v, a.settings())
	if err != nil {
		return err
	}
	a.runner.Run(s, req)
	return nil
}

func (a *Agent) dial(s *session.Stream, v jsonlite.Value) error {
	if err := a.thawed(); err != nil {
		return err
	}
	port, err := v.Get("port").Int("port", 0, 1, 65535)
	if err != nil {
		return err
	}
	return dial.Run(s, int(port), a.log)
}

func (a *Agent) connectToolbox(s *session.Stream) error {
	if err := a.thawed(); err != nil {
		return err
	}
	file, err := a.toolbox.Connect(a.settings())
	if err != nil {
		return err
	}
	return dial.Carry(s, file, a.log)
}

func (a *Agent) signal(s *session.Stream, v jsonlite.Value) error {
	name, err := v.Get("signal").Text("signal")
	if err != nil {
		return err
	}
	sig, err := process.ParseSignal(name)
	if err != nil {
		return err
	}
	leader, err := v.Get("leader_only").Flag("leader_only")
	if err != nil {
		return err
	}
	target, err := exec.Target(s.Session(), v)
	if err == nil {
		err = a.runner.Signal(target, sig, leader)
	}
	if err == nil {
		s.Result(empty())
	}
	return err
}

func (a *Agent) resize(s *session.Stream, v jsonlite.Value) error {
	rows, cols, err := exec.Size(v)
	if err != nil {
		return err
	}
	target, err := exec.Target(s.Session(), v)
	if err == nil {
		err = a.runner.Resize(target, rows, cols)
	}
	if err == nil {
		s.Result(empty())
	}
	return err
}
