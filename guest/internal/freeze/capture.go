package freeze

import (
	"os"
	"strings"
	"syscall"
	"time"

	"releap/guest/internal/fault"
)

const (
	// startLimit is how long Start itself waits for the end of a freeze: most have ended by then.
	startLimit = 2 * time.Millisecond
	// grace is how long processes may take to leave the kernel, before those that are blocked in it count as frozen.
	// graceEach is added for each thread: to read the state of a thread takes longer than to freeze it.
	grace     = 2 * time.Millisecond
	graceEach = 250 * time.Microsecond
	// signalEvery is the interval at which the processes are frozen again, in case another process thawed them.
	signalEvery = 1500 * time.Microsecond
)

// Request of a host that is about to capture the sandbox.
type Request struct {
	// Processes and Disk select what is frozen. Flush is for a host that freezes the processes and then captures the disk: all
	// that they have written is on it, and its journal is as after a power loss.
	Processes, Disk, Flush bool
	// FreezeLimit bounds the freezing itself.
	FreezeLimit time.Duration
	// Deadline after which the sandbox thaws by itself; 0 for never.
	Deadline time.Duration
}

// Durations of the steps.
type Durations struct {
	Wait, Processes, Disk time.Duration
	// InKernel: some threads are blocked inside the kernel, for example on a disk. They are frozen when they leave it, before
	// they execute an instruction of their program.
	InKernel bool
}

// Capture is a freeze in progress.
type Capture struct {
	f         *Freezer
	r         Request
	durations Durations
	began     time.Time
	stepBegan time.Time
	held      bool // the freezer's lock
	undo      bool // something was done
	done      bool
	err       error
	told      time.Time
	look      time.Duration   // after which the states of the threads are read
	inside    map[string]bool // threads that were seen frozen or waiting inside the kernel
}

// Start freezes what can be frozen almost immediately. If the capture is Done, Result has the outcome; else Wait must
// follow, on a goroutine of its own.
func (f *Freezer) Start(r Request) *Capture {
	now := time.Now()
	c := &Capture{f: f, r: r, began: now, stepBegan: now, look: grace}
	select {
	case f.lock <- struct{}{}:
	default:
		return c // a process is being started
	}
	c.held = true
	c.begin()
	if !c.done && r.Processes {
		c.awaitFrozen(c.began.Add(startLimit))
	}
	if !c.done && c.err == nil && c.processesFrozen() && !r.Disk && !r.Flush {
		c.finish()
	}
	return c
}

// Done tells whether nothing is left to do.
func (c *Capture) Done() bool { return c.done }

// Wait until everything is frozen, or the time is over. An error leaves the sandbox as it was.
func (c *Capture) Wait() {
	if c.done {
		return
	}
	end := c.began.Add(c.r.FreezeLimit)
	if !c.held {
		timer := time.NewTimer(time.Until(end))
		defer timer.Stop()
		select {
		case c.f.lock <- struct{}{}:
		case <-timer.C:
			c.fail(fault.New(fault.State, "a process was being started for "+c.r.FreezeLimit.String()))
			return
		}
		c.held = true
		c.begin()
	}
	for c.r.Processes && !c.done && !c.processesFrozen() {
		if time.Now().After(end) {
			c.fail(fault.New(fault.State, "a process of the sandbox could not be stopped within "+c.r.FreezeLimit.String()))
			return
		}
		c.awaitFrozen(end)
	}
	if !c.done && (c.r.Disk || c.r.Flush) {
		c.flushDisk(end)
	}
	if !c.done {
		c.finish()
	}
}

// Result of a capture that is Done. Guard follows.
func (c *Capture) Result() (Durations, error) { return c.durations, c.err }

// Guard arms the timer that thaws the sandbox at the request's deadline. It wakes another thread, so it comes after the
// response where that is sent immediately.
func (c *Capture) Guard() {
	if c.err == nil {
		c.f.guard(c.r.Deadline)
	}
}

func (c *Capture) begin() {
	f := c.f
	c.durations.Wait = c.next()
	switch {
	case f.frozen.Load():
		c.fail(fault.New(fault.Frozen, "the sandbox is frozen already"))
		return
	case (c.r.Disk || c.r.Flush) && f.abandoned != nil:
		select {
		case <-f.abandoned:
			f.abandoned = nil
		default:
			c.fail(fault.New(fault.State, "an earlier freeze of the disk has not ended yet"))
			return
		}
	}
	c.undo = true
	f.frozen.Store(true)
	if c.r.Processes {
		f.processes = true
		c.tell()
	}
}

func (c *Capture) tell() {
	c.told = time.Now()
	if err := c.f.set(frozenState); err != nil {
		c.fail(err)
	}
}

// processesFrozen is true also when no processes were to be frozen.
func (c *Capture) processesFrozen() bool { return !c.r.Processes || c.durations.Processes > 0 }

// awaitFrozen waits until all processes are frozen, or that time has come.
func (c *Capture) awaitFrozen(end time.Time) {
	pause := syscall.Timespec{Nsec: 50_000}
	for !c.done {
		frozen, err := isFrozen(c.f.state)
		now := time.Now()
		if err == nil && !frozen && now.Sub(c.stepBegan) > c.look {
			frozen = c.inKernel()
			c.durations.InKernel = frozen
			c.look += 2 * time.Since(now)
		}
		switch {
		case err != nil:
			c.fail(err)
			return
		case frozen:
			c.durations.Processes = c.next()
			return
		case now.After(end):
			return
		case now.Sub(c.told) > signalEvery:
			c.tell()
		}
		// Not time.Sleep, which may wake another thread of the runtime. This one frees a processor for the threads that are
		// to be frozen.
		_ = syscall.Nanosleep(&pause, nil)
		if pause.Nsec < 1_000_000 {
			pause.Nsec *= 2
		}
	}
}

// flushDisk flushes the disk and freezes it if requested. The kernel cannot cancel that, but the wait for it can end.
func (c *Capture) flushDisk(end time.Time) {
	f := c.f
	if f.scratch == nil {
		return
	}
	finished := make(chan error, 1)
	go func() {
		if c.r.Disk {
			finished <- control(f.scratch, fiFreeze)
		} else {
			finished <- flush(f.scratch)
		}
	}()
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	select {
	case err := <-finished:
		if err != nil {
			c.fail(fault.New(fault.Internal, "flushing the file system: "+err.Error()))
			return
		}
		f.disk = c.r.Disk
		c.durations.Disk = c.next()
	case <-timer.C:
		undone := make(chan struct{})
		f.abandoned = undone
		go func() {
			defer close(undone)
			if err := <-finished; err == nil && c.r.Disk {
				_ = control(f.scratch, fiThaw)
			}
		}()
		c.fail(fault.New(fault.State, "the file system was not flushed within "+c.r.FreezeLimit.String()))
	}
}

// fail undoes what was done.
func (c *Capture) fail(err error) {
	c.err, c.done = err, true
	if !c.held {
		return
	}
	f := c.f
	if c.undo {
		if f.processes {
			_ = f.set(thawedState)
		}
		f.processes = false
		f.frozen.Store(false)
	}
	c.held = false
	<-f.lock
}

func (c *Capture) finish() {
	c.done, c.held = true, false
	<-c.f.lock
}

// next gives the duration of the step that ends now; never zero.
func (c *Capture) next() time.Duration {
	now := time.Now()
	took := now.Sub(c.stepBegan) + 1
	c.stepBegan = now
	return took
}

// isFrozen asks the kernel whether all processes of a group are frozen.
func isFrozen(state *os.File) (bool, error) {
	var buf [32]byte
	n, err := syscall.Pread(int(state.Fd()), buf[:], 0)
	if err != nil {
		return false, err
	}
	return strings.HasPrefix(string(buf[:n]), frozenState), nil
}

// inKernel tells whether every thread is either frozen or waits uninterruptibly inside the kernel. The freezer never lets
// a thread of its group return to its program, so what is captured of one that waits is the wait, with the disk
// request it waits for; nothing of the user's runs before it is thawed. One that runs is another matter: it may be
// reading random numbers.
func (c *Capture) inKernel() bool {
	f := c.f
	var dir syscall.Stat_t
	if err := syscall.Fstat(int(f.group.Fd()), &dir); err != nil || dir.Nlink > 2 {
		return false // a process made groups below ours, whose threads the list lacks
	}
	list, whole := f.tasks()
	if !whole {
		return false
	}
	tids := strings.Fields(list)
	if c.inside == nil {
		c.inside = map[string]bool{}
		if more := time.Duration(len(tids)) * graceEach; more > grace {
			c.look += more
			return false
		}
	}
	var text [512]byte
	for i := len(tids) - 1; i >= 0; i-- { // the youngest are frozen last, so a running one is found soon
		tid := tids[i]
		if c.inside[tid] {
			continue
		}
		switch f.threadState(tid, text[:]) {
		case 'D', 'Z', 'X', 'T', 't', 0:
			c.inside[tid] = true
		default:
			return false
		}
	}
	return true
}

// threadState is the letter of proc(5), 0 when the thread is gone and '?' when that cannot be told.
func (f *Freezer) threadState(tid string, buf []byte) byte {
	fd, err := syscall.Openat(int(f.proc.Fd()), tid+"/stat", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err == syscall.ENOENT {
		return 0
	}
	if err != nil {
		return '?'
	}
	defer syscall.Close(fd)
	n, err := syscall.Read(fd, buf)
	if err == syscall.ESRCH {
		return 0
	}
	if err != nil {
		return '?'
	}
	for i := n - 3; i >= 0; i-- { // behind the name in parentheses, which may hold anything
		if buf[i] == ')' {
			return buf[i+2]
		}
	}
	return '?'
}

// TryThaw thaws what can be thawed at once: processes, while the freezer is not locked. False when Thaw must.
func (f *Freezer) TryThaw() (durations Durations, done bool) {
	select {
	case f.lock <- struct{}{}:
	default:
		return durations, false
	}
	defer func() { <-f.lock }()
	if f.disk {
		return durations, false
	}
	durations, err := f.thaw()
	return durations, err == nil
}

// Thaw undoes a freeze; thawing what is not frozen is no error.
func (f *Freezer) Thaw() (Durations, error) {
	f.lock <- struct{}{}
	defer func() { <-f.lock }()
	return f.thaw()
}

// ThawDisk lets the agent write (new identity files) while the user's processes are still frozen.
func (f *Freezer) ThawDisk() error {
	f.lock <- struct{}{}
	defer func() { <-f.lock }()
	return f.thawDisk()
}

// thaw thaws the processes first: clients wait for them, and a write blocks until the disk is thawed.
func (f *Freezer) thaw() (durations Durations, err error) {
	began := time.Now()
	if f.processes {
		if err := f.set(thawedState); err != nil {
			return durations, err
		}
		f.processes = false
		durations.Processes = time.Since(began)
	}
	if f.disk {
		if err := f.thawDisk(); err != nil {
			return durations, err
		}
		durations.Disk = time.Since(began) - durations.Processes
	}
	f.frozen.Store(false)
	f.guard(0)
	return durations, nil
}

func (f *Freezer) thawDisk() error {
	if !f.disk {
		return nil
	}
	if err := control(f.scratch, fiThaw); err != nil && err != syscall.EINVAL {
		return fault.New(fault.Internal, "thawing the file system: "+err.Error())
	}
	f.disk = false
	return nil
}
