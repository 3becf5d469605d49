package freeze

import (
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"releap/guest/internal/fault"
)

// rehearsalLimit bounds each step of a rehearsal; one takes less than a millisecond where nothing is in its way.
const rehearsalLimit = 50 * time.Millisecond

// Rehearse freezes and thaws a thread of the agent's own, waiting in a system call as most processes do, in a group of
// its own. What was done once is fast: an emulator has translated it, and it is in the caches. Nobody else stands for
// it.
func (f *Freezer) Rehearse() {
	f.lock <- struct{}{}
	defer func() { <-f.lock }()
	if f.frozen.Load() {
		return
	}
	var pipe [2]int
	if err := syscall.Pipe2(pipe[:], syscall.O_CLOEXEC); err != nil {
		return
	}
	defer syscall.Close(pipe[1])
	inside, done := make(chan bool, 1), make(chan struct{})
	go func() {
		defer fault.Guard(f.log, "rehearsal")
		defer close(done)
		defer syscall.Close(pipe[0])
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, wherever it is
		_, err := f.dryTasks.WriteAt([]byte("0"), 0)
		inside <- err == nil
		var nothing [1]byte
		for {
			if _, err := syscall.Read(pipe[0], nothing[:]); err != syscall.EINTR {
				break
			}
		}
		_, _ = f.top.WriteAt([]byte("0"), 0)
	}()
	if <-inside {
		for i := 0; i < 2; i++ {
			f.dryRun()
		}
	}
	_, _ = syscall.Write(pipe[1], []byte("x"))
	<-done
}

// dryRun leaves the group thawed whatever happens: its thread is the agent's.
func (f *Freezer) dryRun() {
	pause := syscall.Timespec{Nsec: 50_000}
	_ = syscall.Nanosleep(&pause, nil) // until the thread waits
	if _, err := f.dryState.WriteAt([]byte(frozenState), 0); err == nil {
		for end := time.Now().Add(rehearsalLimit); time.Now().Before(end); _ = syscall.Nanosleep(&pause, nil) {
			var buf [32]byte
			n, err := syscall.Pread(int(f.dryState.Fd()), buf[:], 0)
			if err != nil || strings.HasPrefix(string(buf[:n]), frozenState) {
				break
			}
		}
	}
	for tries := 0; tries < 100; tries++ {
		if _, err := f.dryState.WriteAt([]byte(thawedState), 0); err == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
	f.log("releap: a thread of the agent stays frozen")
}

func openGroup(group string, tasks, state **os.File) error {
	if err := os.Mkdir(group, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	for _, part := range []struct {
		file **os.File
		name string
	}{{tasks, "tasks"}, {state, "freezer.state"}} {
		var err error
		if *part.file, err = os.OpenFile(group+"/"+part.name, os.O_RDWR, 0); err != nil {
			return err
		}
	}
	return nil
}
