package precopy

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// include/uapi/linux/ptrace.h; missing in some versions of x/sys.
	optionSuspendSeccomp = 0x200000
	requestGetSigmask    = 0x420a
	requestSetSigmask    = 0x420b
	eventStop            = 128
	sigmaskBytes         = 8
)

// stoppedThread is the main thread of the VMM in a ptrace-stop.
type stoppedThread struct {
	process *process
	before  registers
	sigmask uint64
	changed bool
}

// stopLimit bounds the wait for a thread that is blocked inside the kernel, for example on a slow disk. It is shorter than any
// deadline of the runner, which would kill this process.
var stopLimit = 5 * time.Second

// stop interrupts the thread and blocks its signals.
func (t *stoppedThread) stop() error {
	pid := t.process.pid
	if err := ptrace(unix.PTRACE_INTERRUPT, pid, 0, 0); err != nil {
		return fmt.Errorf("cannot interrupt: %w", err)
	}
	for deadline := time.Now().Add(stopLimit); ; {
		status, err := waitStoppedUntil(pid, deadline)
		if err != nil {
			return err
		}
		if status>>16 == eventStop {
			break
		}
		// A signal that came before is delivered first.
		if err := ptrace(unix.PTRACE_CONT, pid, 0, uintptr(status>>8&0xff)); err != nil {
			return fmt.Errorf("cannot deliver a signal: %w", err)
		}
	}
	if err := ptrace(unix.PTRACE_SETOPTIONS, pid, 0, unix.PTRACE_O_EXITKILL); err != nil {
		return fmt.Errorf("cannot set options: %w", err)
	}
	if err := t.before.get(pid); err != nil {
		return fmt.Errorf("cannot read registers: %w", err)
	}
	if err := ptracePointer(requestGetSigmask, pid, sigmaskBytes, unsafe.Pointer(&t.sigmask)); err != nil {
		return fmt.Errorf("cannot read the signal mask: %w", err)
	}
	all := ^uint64(0)
	if err := ptracePointer(requestSetSigmask, pid, sigmaskBytes, unsafe.Pointer(&all)); err != nil {
		return fmt.Errorf("cannot set the signal mask: %w", err)
	}
	t.changed = true
	return nil
}

// restore undoes what stop and syscall have changed. The system call that the thread was in is restarted, as after a signal
// without a handler (signal(7)).
func (t *stoppedThread) restore() error {
	if !t.changed {
		return nil
	}
	after := t.before
	after.restartSyscall()
	registersErr := after.set(t.process.pid)
	maskErr := ptracePointer(requestSetSigmask, t.process.pid, sigmaskBytes, unsafe.Pointer(&t.sigmask))
	if registersErr != nil {
		return registersErr
	}
	return maskErr
}

// A call that a pending SIGSTOP interrupts is made again: the signal is delivered on the way.
const interruptedAttempts = 100

// syscall makes the thread do one system call. It gives the result as the kernel returns it (negative: an errno).
func (t *stoppedThread) syscall(number uintptr, arguments ...uintptr) (result int64, err error) {
	for attempt := 0; attempt < interruptedAttempts; attempt++ {
		result, err = t.syscallOnce(number, arguments)
		if err != nil || !isInterrupted(result) {
			break
		}
	}
	return result, err
}

// isInterrupted tells -ERESTARTSYS, -ERESTARTNOINTR and -ERESTARTNOHAND (include/linux/errno.h), which only a tracer sees.
func isInterrupted(result int64) bool { return result <= -512 && result >= -514 }

func (t *stoppedThread) syscallOnce(number uintptr, arguments []uintptr) (int64, error) {
	pid := t.process.pid
	at := t.before
	at.prepareSyscall(t.process.syscallAt, number, arguments)
	if err := at.set(pid); err != nil {
		return 0, fmt.Errorf("cannot set registers: %w", err)
	}
	for signal := uintptr(0); ; {
		if err := ptrace(unix.PTRACE_SINGLESTEP, pid, 0, signal); err != nil {
			return 0, fmt.Errorf("cannot step: %w", err)
		}
		status, err := waitStopped(pid)
		if err != nil {
			return 0, err
		}
		if status>>8 == int(unix.SIGTRAP) {
			break
		}
		signal = 0
		switch {
		case status>>8 == int(unix.SIGSTOP):
			// SIGSTOP cannot be blocked: it takes effect when the thread is detached.
			signal = uintptr(unix.SIGSTOP)
		case status>>16 == eventStop:
		default:
			return 0, fmt.Errorf("it stopped unexpectedly (status %#x)", status)
		}
	}
	var after registers
	if err := after.get(pid); err != nil {
		return 0, fmt.Errorf("cannot read registers: %w", err)
	}
	return after.result(), nil
}

// Below the stack pointer and the red zone (128 bytes at most), where the thread has no data.
const scratchBelowStack = 512

// syscallWith makes a system call whose last argument is the address of a structure.
func (t *stoppedThread) syscallWith(number, first, second uintptr, structure *[4]uint64) (int64, error) {
	at := (t.before.stack() - scratchBelowStack) &^ 15
	local := unix.Iovec{Base: (*byte)(unsafe.Pointer(structure))}
	local.SetLen(int(unsafe.Sizeof(*structure)))
	remote := unix.RemoteIovec{Base: at, Len: int(unsafe.Sizeof(*structure))}
	if _, err := unix.ProcessVMWritev(t.process.pid, []unix.Iovec{local}, []unix.RemoteIovec{remote}, 0); err != nil {
		return 0, fmt.Errorf("cannot write to its stack: %w", err)
	}
	return t.syscall(number, first, second, at)
}

// waitStoppedUntil is waitStopped with a deadline. It yields before it sleeps: most threads stop within microseconds.
func waitStoppedUntil(pid int, deadline time.Time) (int, error) {
	for round := 0; ; round++ {
		var status unix.WaitStatus
		stopped, err := unix.Wait4(pid, &status, unix.WALL|unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait4: %w", err)
		case stopped == pid && status.Stopped():
			return int(status), nil
		case stopped == pid:
			return 0, fmt.Errorf("it ended (status %#x)", uint32(status))
		case time.Now().After(deadline):
			return 0, fmt.Errorf("it does not stop within %s: it is blocked inside the kernel", stopLimit)
		case round < yieldRounds:
			runtime.Gosched()
		default:
			time.Sleep(stopPause)
		}
	}
}

const (
	yieldRounds = 1000
	stopPause   = 100 * time.Microsecond
)

// waitStopped waits for the next ptrace-stop and gives its wait status.
func waitStopped(pid int) (int, error) {
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &status, unix.WALL, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("wait4: %w", err)
		}
		break
	}
	if !status.Stopped() {
		return 0, fmt.Errorf("it ended (status %#x)", uint32(status))
	}
	return int(status), nil
}

func ptrace(request, pid int, address, data uintptr) error {
	if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(pid), address, data, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// ptracePointer is ptrace for requests through which the kernel reads or writes memory of ours.
func ptracePointer(request, pid int, address uintptr, data unsafe.Pointer) error {
	if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(pid), address, uintptr(data), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// registerSet reads or writes the general-purpose registers (PTRACE_GETREGSET, NT_PRSTATUS).
func registerSet(request, pid int, base unsafe.Pointer, size uintptr) error {
	const noteGeneralPurpose = 1
	vector := unix.Iovec{Base: (*byte)(base)}
	vector.SetLen(int(size))
	return ptracePointer(request, pid, noteGeneralPurpose, unsafe.Pointer(&vector))
}
