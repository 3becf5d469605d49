package boot

import (
	"runtime"
	"syscall"
	"unsafe"
)

// Values of sched(7).
const (
	schedFIFO        = 1
	schedResetOnFork = 0x40000000
	hostPriority     = 50
)

// PreferThread binds the calling goroutine, which reads the host's requests, to a thread with a real-time priority, so that a
// request to freeze does not wait for the user's processes. Processes that this thread starts do not inherit the priority.
func PreferThread() {
	// After a system call a thread also needs a processor of the Go runtime (P), and threads that are not scheduled may hold
	// all of them.
	runtime.GOMAXPROCS(runtime.NumCPU() + 2)
	runtime.LockOSThread()
	priority := int32(hostPriority)
	_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_SETSCHEDULER, 0, schedFIFO|schedResetOnFork, uintptr(unsafe.Pointer(&priority)))
}
