// Package process starts processes, reaps every child of PID 1 and resolves users and commands.
package process

import (
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"releap/guest/internal/fault"
)

// Status of an ended process.
type Status struct {
	// Code is the exit code, or 128 + the signal number.
	Code int
	// Signal that ended it, 0 when it exited by itself.
	Signal syscall.Signal
}

// Process that was started here. It leads its own session and process group.
type Process struct {
	PID    int
	table  *Table
	status Status
	done   chan struct{}
	// gone is 1 once it was reaped and its group had no other member: the group's id may be another's by now.
	gone int32
}

// Done is closed once the process was reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Status may be asked after Done.
func (p *Process) Status() Status { return p.status }

// SignalGroup signals the process group. Its id stays taken as long as any member lives, and no longer.
func (p *Process) SignalGroup(sig syscall.Signal) {
	// Without the lock of the table: a start that the kernel holds up must not keep others from being ended.
	if atomic.LoadInt32(&p.gone) == 0 && syscall.Kill(-p.PID, sig) == syscall.ESRCH {
		atomic.StoreInt32(&p.gone, 1)
	}
}

// Signal only the process itself; false when it has ended.
func (p *Process) Signal(sig syscall.Signal) bool {
	p.table.mu.Lock() // not reaped while we hold this, so the number cannot be another's
	defer p.table.mu.Unlock()
	if p.table.running[p.PID] != p {
		return false
	}
	return syscall.Kill(p.PID, sig) == nil
}

// Place marks where a new process is to be put before it runs its first instruction: Enter and Leave are
// called around the fork, on the forking thread.
type Place interface {
	Enter() error
	Leave()
}

// Table of the processes this agent started, and the one place that waits for children. A child is entered
// under the lock that the reaper takes before it looks a number up, so that a child that ends at once is not
// lost, and nobody else ever calls wait.
type Table struct {
	mu      sync.Mutex
	running map[int]*Process
	place   Place
	wake    chan struct{}
	log     func(string)
}

// NewTable starts the reaper.
func NewTable(place Place, log func(string)) *Table {
	t := &Table{running: map[int]*Process{}, place: place, wake: make(chan struct{}, 1), log: log}
	go t.reap()
	return t
}

// Spec of a process to start.
type Spec struct {
	Path string
	Argv []string
	Env  []string
	Dir  string
	User User
	// Files become descriptors 0, 1, 2.
	Files [3]uintptr
	// Terminal makes descriptor 0 the controlling terminal.
	Terminal bool
}

// Start a process.
func (t *Table) Start(spec Spec) (*Process, *StartError) {
	attr := &syscall.ProcAttr{
		Dir:   spec.Dir,
		Env:   spec.Env,
		Files: spec.Files[:],
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: spec.Terminal},
	}
	if syscall.Getuid() == 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: spec.User.UID, Gid: spec.User.GID, Groups: spec.User.Groups}
	} else if int(spec.User.UID) != syscall.Getuid() {
		return nil, &StartError{CannotExecute, "the agent does not run as root and cannot become uid " + strconv.Itoa(int(spec.User.UID))}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if t.place != nil {
		if err := t.place.Enter(); err != nil {
			return nil, &StartError{CannotExecute, "process group of the sandbox: " + err.Error()}
		}
		defer t.place.Leave()
	}
	pid, err := syscall.ForkExec(spec.Path, spec.Argv, attr)
	if err != nil {
		return nil, explain(err, spec.Path)
	}
	p := &Process{PID: pid, table: t, done: make(chan struct{})}
	t.running[pid] = p
	select {
	case t.wake <- struct{}{}:
	default:
	}
	return p, nil
}

func (t *Table) reap() {
	defer fault.Guard(t.log, "reaper")
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WALL, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // no child: every orphan is a child, so none comes before one is started
			<-t.wake
		case ws.Exited() || ws.Signaled():
			t.ended(pid, ws)
		}
	}
}

func (t *Table) ended(pid int, ws syscall.WaitStatus) {
	t.mu.Lock()
	p := t.running[pid]
	delete(t.running, pid)
	if p != nil && syscall.Kill(-pid, 0) == syscall.ESRCH {
		atomic.StoreInt32(&p.gone, 1)
	}
	t.mu.Unlock()
	if p == nil {
		return // an orphan
	}
	if ws.Signaled() {
		p.status = Status{Code: 128 + int(ws.Signal()), Signal: ws.Signal()}
	} else {
		p.status = Status{Code: ws.ExitStatus()}
	}
	close(p.done)
}
