// Package freeze stops user processes and the writable file system while the host takes a snapshot.
//
// A freeze is downtime for clients of the sandbox, so the code between a request and its response allocates little, starts
// nothing, logs nothing and never sleeps longer than necessary.
package freeze

import (
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"releap/guest/internal/fault"
)

const (
	fiFreeze = 0xC0045877
	fiThaw   = 0xC0045878

	frozenState = "FROZEN"
	thawedState = "THAWED"
)

// Freezer holds every user process in one freezer control group.
//
// It is the version 1 freezer, on a mount of its own that user space never sees: in version 1 a single thread
// can change group, so the thread that forks enters the group first and the child starts in it: it never runs outside
// of the group. All of cgroup v2 is left to the user (a container engine needs to own it).
type Freezer struct {
	user    *os.File
	top     *os.File
	state   *os.File
	group   *os.File
	proc    *os.File
	scratch *os.File
	log     func(string)

	dryTasks, dryState *os.File // of the group for warm-ups

	// lock is held while a process is started, and during a freeze or a thaw. A channel allows to try and to wait with a
	// limit, and serves waiters in order.
	lock      chan struct{}
	processes bool          // they are frozen
	disk      bool          // it is frozen
	abandoned chan struct{} // closed when a freeze of the disk that was abandoned has been undone
	frozen    atomic.Bool   // either is frozen, or is being frozen

	timerMu  sync.Mutex
	timer    *time.Timer
	deadline time.Duration
}

// Open the freezer mounted at dir and make the group of the user's processes.
func Open(dir string, log func(string)) (*Freezer, error) {
	f := &Freezer{log: log, lock: make(chan struct{}, 1)}
	// The first group that is frozen enables a static key, which patches kernel code on all processors, and the last one
	// that is thawed disables it: milliseconds each. This empty group stays frozen, so that neither happens later.
	var pinTasks, pinState *os.File
	if err := openGroup(dir+"/pin", &pinTasks, &pinState); err != nil {
		return nil, err
	}
	if _, err := pinState.WriteAt([]byte(frozenState), 0); err != nil {
		return nil, err
	}
	if err := openGroup(dir+"/user", &f.user, &f.state); err != nil {
		return nil, err
	}
	if err := openGroup(dir+"/dry", &f.dryTasks, &f.dryState); err != nil {
		return nil, err
	}
	for _, part := range []struct {
		file **os.File
		path string
		flag int
	}{{&f.group, dir + "/user", os.O_RDONLY}, {&f.top, dir + "/tasks", os.O_RDWR}, {&f.proc, "/proc", os.O_RDONLY}} {
		var err error
		if *part.file, err = os.OpenFile(part.path, part.flag, 0); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// SetScratch names the file system that Freeze stops, by any open file on it.
func (f *Freezer) SetScratch(dir *os.File) { f.scratch = dir }

// Enter moves the calling thread, which must be locked to its goroutine, into the user's group. It locks the freezer.
func (f *Freezer) Enter() error {
	f.lock <- struct{}{}
	if f.frozen.Load() {
		<-f.lock
		return fault.New(fault.Frozen, "the sandbox is frozen")
	}
	if _, err := f.user.WriteAt([]byte("0"), 0); err != nil {
		<-f.lock
		return err
	}
	return nil
}

// Leave moves the thread back, and unlocks the freezer.
func (f *Freezer) Leave() {
	if _, err := f.top.WriteAt([]byte("0"), 0); err != nil {
		f.log("releap: a thread of the agent stays in the user's group: " + err.Error())
	}
	<-f.lock
}

// Frozen tells whether the sandbox is frozen or being frozen.
func (f *Freezer) Frozen() bool { return f.frozen.Load() }

// Empty tells whether no user process is left.
func (f *Freezer) Empty() bool { return f.Count() == 0 }

// Count of the user's threads, exact up to some thousands.
func (f *Freezer) Count() int {
	list, _ := f.tasks()
	return strings.Count(list, "\n")
}

// tasks lists the user's threads, one a line, and tells whether that is all of them. The file is opened again each
// time: the kernel keeps the list that an open one has shown for a second.
func (f *Freezer) tasks() (list string, whole bool) {
	fd, err := syscall.Openat(int(f.group.Fd()), "tasks", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return "", false
	}
	defer syscall.Close(fd)
	buf := make([]byte, 64*1024)
	n := 0
	for n < len(buf) {
		got, err := syscall.Read(fd, buf[n:])
		if err != nil {
			return "", false
		}
		if got == 0 {
			return string(buf[:n]), true
		}
		n += got
	}
	return string(buf), false
}

// FreezeDisk freezes the disk before the machine powers off, which leaves it clean, as after an unmount.
func (f *Freezer) FreezeDisk() error {
	if f.scratch == nil {
		return nil
	}
	return control(f.scratch, fiFreeze)
}

func (f *Freezer) set(state string) error {
	_, err := f.state.WriteAt([]byte(state), 0)
	return err
}

// guard arms the timer that thaws the sandbox after that time, in case its host has crashed. Called when frozen; with zero
// only the host thaws it.
func (f *Freezer) guard(deadline time.Duration) {
	f.timerMu.Lock()
	defer f.timerMu.Unlock()
	f.deadline = deadline
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
	if deadline <= 0 || !f.frozen.Load() {
		return
	}
	var own *time.Timer
	own = time.AfterFunc(deadline, func() {
		f.timerMu.Lock()
		current := f.timer == own
		f.timerMu.Unlock()
		if !current {
			return
		}
		f.log("releap: the host has not thawed the sandbox within " + deadline.String() + "; it thaws by itself")
		_, _ = f.Thaw()
	})
	f.timer = own
}

// Heard restarts the timer of the freeze, because a host has connected.
func (f *Freezer) Heard() {
	f.timerMu.Lock()
	deadline, armed := f.deadline, f.timer != nil
	f.timerMu.Unlock()
	if armed {
		f.guard(deadline)
	}
}

// Hold stops the timer of the freeze: the host is about to change the identity, and the sandbox must not continue with the
// former one.
func (f *Freezer) Hold() { f.guard(0) }

func control(file *os.File, request uintptr) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, file.Fd(), request, 0); errno != 0 {
		return errno
	}
	return nil
}

func flush(file *os.File) error {
	if _, _, errno := syscall.Syscall(sysSyncFS, file.Fd(), 0, 0); errno != 0 {
		return errno
	}
	return nil
}
