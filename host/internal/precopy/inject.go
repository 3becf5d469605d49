package precopy

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// process is the VMM.
type process struct {
	pid int
	// Address of a system call instruction in its vdso(7).
	syscallAt uintptr
}

// newProcess finds what system calls are made with. The process is not stopped.
func newProcess(pid int) (*process, error) {
	mappings, err := readMappings(pid)
	if err != nil {
		return nil, err
	}
	at, err := findSyscall(pid, mappings)
	return &process{pid: pid, syscallAt: at}, err
}

// whileStopped stops the main thread, runs work, and lets the thread continue as if nothing had happened.
//
// Until the thread has stopped nothing of it is changed, and it may take long to stop: the end of this process then only detaches
// it. From then on (PTRACE_O_EXITKILL) it kills the VMM, which would otherwise continue with wrong registers.
func (p *process) whileStopped(work func(*stoppedThread) error) (err error) {
	if err := ptrace(unix.PTRACE_SEIZE, p.pid, 0, 0); err != nil {
		return fmt.Errorf("ptrace(PTRACE_SEIZE) of process %d: %w", p.pid, err)
	}
	thread := &stoppedThread{process: p}
	defer func() {
		// PTRACE_DETACH needs a stopped tracee; one that has ended needs nothing.
		if detachErr := ptrace(unix.PTRACE_DETACH, p.pid, 0, 0); err == nil && detachErr != nil {
			err = fmt.Errorf("cannot let process %d continue: %w", p.pid, detachErr)
		}
	}()
	if err := thread.stop(); err != nil {
		return fmt.Errorf("process %d: %w", p.pid, err)
	}
	// Only from here to the detach, while the thread runs nothing but our calls, its seccomp filter is off.
	suspended := unix.PTRACE_O_EXITKILL | optionSuspendSeccomp
	if err := ptrace(unix.PTRACE_SETOPTIONS, p.pid, 0, uintptr(suspended)); err != nil {
		return fmt.Errorf("cannot suspend the seccomp filter of process %d: %w", p.pid, err)
	}
	if err = work(thread); err != nil {
		err = fmt.Errorf("process %d: %w", p.pid, err)
	}
	if restoreErr := thread.restore(); restoreErr != nil && err == nil {
		err = fmt.Errorf("cannot restore process %d: %w", p.pid, restoreErr)
	}
	if optionsErr := ptrace(unix.PTRACE_SETOPTIONS, p.pid, 0, unix.PTRACE_O_EXITKILL); optionsErr != nil && err == nil {
		err = fmt.Errorf("cannot restore the seccomp filter of process %d: %w", p.pid, optionsErr)
	}
	return err
}

// findSyscall looks for a system call instruction in the vdso, which the kernel maps into every process.
func findSyscall(pid int, mappings []mapping) (uintptr, error) {
	for _, one := range mappings {
		if one.name != "[vdso]" {
			continue
		}
		memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
		if err != nil {
			return 0, err
		}
		defer memory.Close()
		code := make([]byte, one.end-one.start)
		if _, err := memory.ReadAt(code, int64(one.start)); err != nil {
			return 0, fmt.Errorf("cannot read process %d: %w", pid, err)
		}
		for at := bytes.Index(code, syscallInstruction); at >= 0; {
			if at%syscallAlignment == 0 {
				return one.start + uintptr(at), nil
			}
			next := bytes.Index(code[at+1:], syscallInstruction)
			if next < 0 {
				break
			}
			at += 1 + next
		}
		return 0, fmt.Errorf("the vdso of process %d has no system call", pid)
	}
	return 0, fmt.Errorf("process %d has no vdso", pid)
}
