package freeze

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"releap/guest/internal/fault"
)

// warmUpLimit bounds each step of a warm-up; one takes less than a millisecond on an idle machine.
const warmUpLimit = 50 * time.Millisecond

// leaveLimit bounds the end of a warm-up.
const leaveLimit = time.Second

// WarmUp freezes and thaws a thread of the agent in a group of its own. The thread is blocked in a system call, as most
// processes are. Afterwards an emulator has translated the code of a freeze, and the caches have it. No other thread is frozen.
func (f *Freezer) WarmUp() {
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
	thread, done := make(chan int, 1), make(chan struct{})
	go func() {
		defer fault.Guard(f.log, "warm-up of a freeze")
		defer close(done)
		defer syscall.Close(pipe[0])
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, wherever it is
		if _, err := f.dryTasks.WriteAt([]byte("0"), 0); err == nil {
			thread <- syscall.Gettid()
		} else {
			thread <- 0
		}
		var nothing [1]byte
		for {
			if _, err := syscall.Read(pipe[0], nothing[:]); err != syscall.EINTR {
				break
			}
		}
		_, _ = f.top.WriteAt([]byte("0"), 0)
	}()
	if tid := strconv.Itoa(<-thread); tid != "0" {
		for i := 0; i < 2 && f.waitsIn(tid, syscall.SYS_READ, pipe[0]); i++ {
			f.dryRun(tid)
		}
	}
	_, _ = syscall.Write(pipe[1], []byte("x"))
	patience := time.NewTimer(leaveLimit)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C: // another process has frozen it
	}
}

// waitsIn waits until a thread of the agent waits in that very system call. Anywhere else it might hold a lock of the
// Go runtime, and must never be frozen: nothing could then thaw it.
func (f *Freezer) waitsIn(tid string, call, fd int) bool {
	want := strconv.Itoa(call) + " 0x" + strconv.FormatInt(int64(fd), 16) + " "
	var buf [256]byte
	for end := time.Now().Add(warmUpLimit); time.Now().Before(end); short() {
		file, err := syscall.Openat(int(f.proc.Fd()), tid+"/syscall", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			return false
		}
		n, _ := syscall.Read(file, buf[:])
		syscall.Close(file)
		if n > 0 && strings.HasPrefix(string(buf[:n]), want) {
			return true
		}
	}
	return false
}

// dryRun leaves the group thawed whatever happens: its thread is the agent's.
func (f *Freezer) dryRun(tid string) {
	if _, err := f.dryState.WriteAt([]byte(frozenState), 0); err == nil {
		for end := time.Now().Add(warmUpLimit); time.Now().Before(end); short() {
			if frozen, err := isFrozen(f.dryState); err != nil || frozen {
				break
			}
		}
		// What a freeze does when it takes longer.
		_, _ = f.tasks()
		var text [512]byte
		_ = f.threadState(tid, text[:])
	}
	for tries := 0; tries < 100; tries++ {
		if _, err := f.dryState.WriteAt([]byte(thawedState), 0); err == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
	f.log("releap: a thread of the agent stays frozen")
}

func short() {
	_ = syscall.Nanosleep(&syscall.Timespec{Nsec: 50_000}, nil)
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
