package precopy

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// svc #0
var syscallInstruction = []byte{0x01, 0x00, 0x00, 0xd4}

const syscallAlignment = 4

type registers struct{ unix.PtraceRegsArm64 }

func (r *registers) get(pid int) error {
	return registerSet(unix.PTRACE_GETREGSET, pid, unsafe.Pointer(&r.PtraceRegsArm64), unsafe.Sizeof(r.PtraceRegsArm64))
}

func (r *registers) set(pid int) error {
	return registerSet(unix.PTRACE_SETREGSET, pid, unsafe.Pointer(&r.PtraceRegsArm64), unsafe.Sizeof(r.PtraceRegsArm64))
}

func (r *registers) prepareSyscall(at, number uintptr, arguments []uintptr) {
	for index := range r.Regs[:6] {
		r.Regs[index] = 0
	}
	for index, argument := range arguments {
		r.Regs[index] = uint64(argument)
	}
	r.Regs[8], r.Pc = uint64(number), uint64(at)
}

func (r *registers) stack() uintptr { return uintptr(r.Sp) }

func (r *registers) result() int64 { return int64(r.Regs[0]) }

// restartSyscall has nothing to do: arm64 has put the program counter and x0 back before it reports the stop
// (arch/arm64/kernel/signal.c, do_signal).
func (r *registers) restartSyscall() {}
