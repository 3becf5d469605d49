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

// PreferThread binds the calling goroutine, which reads what the host says, to a thread that runs before everything
// that users run at ordinary priority: a host that asks for a freeze is not to wait for their turns. Nothing that
// this thread starts inherits that.
func PreferThread() {
	// One that comes back from a system call needs a processor of the Go runtime as well, and all of them may be held
	// by threads that wait for their turn.
	runtime.GOMAXPROCS(runtime.NumCPU() + 2)
	runtime.LockOSThread()
	priority := int32(hostPriority)
	_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_SETSCHEDULER, 0, schedFIFO|schedResetOnFork, uintptr(unsafe.Pointer(&priority)))
}
