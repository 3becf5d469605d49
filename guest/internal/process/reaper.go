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

// String says how it ended.
func (s Status) String() string {
	if s.Signal != 0 {
		return "was ended by " + SignalName(s.Signal)
	}
	return "exited with code " + strconv.Itoa(s.Code)
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
	// The number may be another's only after this process was reaped, and the reaper takes this lock next.
	p.table.mu.Lock()
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

// Table of the processes this agent started, and the one place that waits for children. Nothing is forked under its
// lock: a start that blocks in the kernel must not delay reaping or signals.
type Table struct {
	mu      sync.Mutex
	running map[int]*Process
	// starting counts the forks under way. A child may end before its fork has returned here: until there are
	// none, the status of unknown children is kept, including those of orphans.
	starting int
	early    map[int]syscall.WaitStatus
	place    Place
	wake     chan struct{}
	log      func(string)
}

// NewTable starts the reaper.
func NewTable(place Place, log func(string)) *Table {
	t := &Table{running: map[int]*Process{}, early: map[int]syscall.WaitStatus{}, place: place, wake: make(chan struct{}, 1), log: log}
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
	// Sockets are descriptors from 3 on that the program listens on, announced as sd_listen_fds(3) expects it.
	Sockets []uintptr
	// extra descriptors, behind those.
	extra []uintptr
}

// Start a process.
func (t *Table) Start(spec Spec) (*Process, *StartError) {
	if syscall.Getuid() != 0 && int(spec.User.UID) != syscall.Getuid() {
		return nil, &StartError{CannotExecute, "the agent does not run as root and cannot become uid " + strconv.Itoa(int(spec.User.UID))}
	}
	// What announces sockets is the number of the process.
	if len(spec.Sockets) > 0 || mayHang() {
		return t.startApart(spec)
	}
	return t.fork(spec)
}

// fork blocks its thread, and with it one processor of the Go runtime, until the child has executed its program.
func (t *Table) fork(spec Spec) (*Process, *StartError) {
	attr := &syscall.ProcAttr{
		Dir:   spec.Dir,
		Env:   spec.Env,
		Files: append(append(spec.Files[:], spec.Sockets...), spec.extra...),
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: spec.Terminal},
	}
	if syscall.Getuid() == 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: spec.User.UID, Gid: spec.User.GID, Groups: spec.User.Groups}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if t.place != nil {
		if err := t.place.Enter(); err != nil {
			return nil, &StartError{CannotExecute, "process group of the sandbox: " + err.Error()}
		}
		defer t.place.Leave()
	}
	t.mu.Lock()
	t.starting++
	t.mu.Unlock()
	pid, err := syscall.ForkExec(spec.Path, spec.Argv, attr)
	p := t.started(pid, err)
	if err != nil {
		return nil, explain(err, spec.Path)
	}
	return p, nil
}

// started enters a child, which may have ended already.
func (t *Table) started(pid int, err error) *Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.starting--
	var p *Process
	if err == nil {
		p = &Process{PID: pid, table: t, done: make(chan struct{})}
		if ws, ended := t.early[pid]; ended {
			delete(t.early, pid)
			p.end(ws)
		} else {
			t.running[pid] = p
		}
	}
	if t.starting == 0 {
		t.early = map[int]syscall.WaitStatus{}
	}
	if err != nil {
		return nil
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
	return p
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
	defer t.mu.Unlock()
	p := t.running[pid]
	delete(t.running, pid)
	if p != nil {
		p.end(ws)
	} else if t.starting > 0 {
		t.early[pid] = ws // of a child whose fork has not returned, or of an orphan
	}
}

// end is called under the lock of the table, right after the process was reaped.
func (p *Process) end(ws syscall.WaitStatus) {
	if syscall.Kill(-p.PID, 0) == syscall.ESRCH {
		atomic.StoreInt32(&p.gone, 1)
	}
	if ws.Signaled() {
		p.status = Status{Code: 128 + int(ws.Signal()), Signal: ws.Signal()}
	} else {
		p.status = Status{Code: ws.ExitStatus()}
	}
	close(p.done)
}
