// Package cowclone makes copy-on-write clones of a running VMM's memory.
//
// ptrace(2) makes the VMM call fork(2). The clone never runs: it stays in its first ptrace-stop, so that its memory can be read
// while the VMM and its guest continue. It ends with this process (PTRACE_O_EXITKILL).
//
// QEMU excludes its guest's memory from forks (MADV_DONTFORK), which is reverted first (MADV_DOFORK). The rest of its memory is
// excluded instead: it is not read in the clone, and the VMM would have to copy each shared page before its next write.
// Neither is undone: the VMM never forks by itself, and its seccomp filter does not allow it to.
//
// Only the main thread of the VMM is stopped, for half a millisecond and the time that copying page tables takes. If this
// process is killed in that time, the kernel kills the VMM as well: otherwise the VMM would continue with wrong registers.
package cowclone

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Serve prepares clones of process PID, whose guest's memory lies at ADDRESS for BYTES bytes, and prints "ready\n". For
// each line "copy\n" it prints the pid of a new clone. The clones end with this process, which ends with standard input.
func Serve(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: hostd cow-clone PID ADDRESS BYTES")
	}
	numbers, err := parseNumbers(args)
	if err != nil {
		return err
	}
	// All ptrace(2) requests of a tracee have to come from the thread that has attached to it.
	runtime.LockOSThread()
	// The VMM is stopped while this process works.
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, -10)
	vmm := &process{pid: int(numbers[0])}
	if err := vmm.prepare(uintptr(numbers[1]), uintptr(numbers[2])); err != nil {
		return err
	}
	fmt.Println("ready")
	var clones []int
	defer func() { reap(clones) }()
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		if orders.Text() != "copy" {
			return fmt.Errorf("unknown order %q", orders.Text())
		}
		clone, err := vmm.clone()
		if clone != 0 {
			clones = append(clones, clone)
		}
		if err != nil {
			return err
		}
		fmt.Println(clone)
	}
	return orders.Err()
}

// reap kills clones and waits until their memory is free, as the parent of this process may need it.
func reap(clones []int) {
	for _, clone := range clones {
		_ = unix.Kill(clone, unix.SIGKILL)
		for {
			var status unix.WaitStatus
			_, err := unix.Wait4(clone, &status, unix.WALL, nil)
			if errors.Is(err, unix.EINTR) || err == nil && !status.Exited() && !status.Signaled() {
				continue
			}
			break
		}
	}
}

// process is the VMM.
type process struct {
	pid int
	// Address of a system call instruction in its vdso(7).
	syscallAt uintptr
}

// prepare lets clones have the guest's memory and nothing else.
func (p *process) prepare(address, size uintptr) error {
	mappings, err := readMappings(p.pid)
	if err != nil {
		return err
	}
	if p.syscallAt, err = findSyscall(p.pid, mappings); err != nil {
		return err
	}
	others, err := aroundMemory(mappings, address, size)
	if err != nil {
		return fmt.Errorf("process %d: %w", p.pid, err)
	}
	_, err = p.whileStopped(0, func(thread *stoppedThread) (int, error) {
		result, _, err := thread.syscall(unix.SYS_MADVISE, address, size, unix.MADV_DOFORK)
		if err != nil {
			return 0, err
		}
		if result != 0 {
			return 0, fmt.Errorf("its memory cannot be forked: %w", unix.Errno(-result))
		}
		for _, other := range others {
			// Where nothing is mapped madvise(2) fails with ENOMEM after it has done the rest.
			if _, _, err := thread.syscall(unix.SYS_MADVISE, other.start, other.end-other.start, unix.MADV_DONTFORK); err != nil {
				return 0, err
			}
		}
		return 0, nil
	})
	return err
}

// clone makes the VMM fork, and gives the pid of the clone, which stays stopped.
func (p *process) clone() (int, error) {
	return p.whileStopped(unix.PTRACE_O_TRACEFORK, func(thread *stoppedThread) (int, error) {
		result, clone, err := thread.syscall(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0)
		if err != nil {
			return clone, err
		}
		if result < 0 {
			return 0, fmt.Errorf("it cannot fork: %w", unix.Errno(-result))
		}
		if clone == 0 {
			return 0, errors.New("its fork was not reported")
		}
		_, err = waitStopped(clone)
		return clone, err
	})
}

// whileStopped stops the main thread, runs work, and lets the thread continue as if nothing had happened.
//
// Until the thread has stopped nothing of it is changed, and it may take long to stop: the end of this process then only detaches
// it. From then on (PTRACE_O_EXITKILL) it kills the VMM, which would otherwise continue with wrong registers.
func (p *process) whileStopped(options int, work func(*stoppedThread) (int, error)) (result int, err error) {
	if err := ptrace(unix.PTRACE_SEIZE, p.pid, 0, 0); err != nil {
		return 0, fmt.Errorf("ptrace(PTRACE_SEIZE) of process %d: %w", p.pid, err)
	}
	thread := &stoppedThread{process: p}
	defer func() {
		// PTRACE_DETACH needs a stopped tracee; one that has ended needs nothing.
		if detachErr := ptrace(unix.PTRACE_DETACH, p.pid, 0, 0); err == nil && detachErr != nil {
			err = fmt.Errorf("cannot let process %d continue: %w", p.pid, detachErr)
		}
	}()
	if err := thread.stop(); err != nil {
		return 0, fmt.Errorf("process %d: %w", p.pid, err)
	}
	// Only from here to the detach, while the thread runs nothing but our calls, its seccomp filter is off.
	suspended := unix.PTRACE_O_EXITKILL | optionSuspendSeccomp | options
	if err := ptrace(unix.PTRACE_SETOPTIONS, p.pid, 0, uintptr(suspended)); err != nil {
		return 0, fmt.Errorf("cannot suspend the seccomp filter of process %d: %w", p.pid, err)
	}
	if result, err = work(thread); err != nil {
		err = fmt.Errorf("process %d: %w", p.pid, err)
	}
	if restoreErr := thread.restore(); restoreErr != nil && err == nil {
		err = fmt.Errorf("cannot restore process %d: %w", p.pid, restoreErr)
	}
	if optionsErr := ptrace(unix.PTRACE_SETOPTIONS, p.pid, 0, unix.PTRACE_O_EXITKILL); optionsErr != nil && err == nil {
		err = fmt.Errorf("cannot restore the seccomp filter of process %d: %w", p.pid, optionsErr)
	}
	return result, err
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
