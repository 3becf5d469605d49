package precopy

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// syscall
var syscallInstruction = []byte{0x0f, 0x05}

const syscallAlignment = 1

type registers struct{ unix.PtraceRegsAmd64 }

func (r *registers) get(pid int) error {
	return registerSet(unix.PTRACE_GETREGSET, pid, unsafe.Pointer(&r.PtraceRegsAmd64), unsafe.Sizeof(r.PtraceRegsAmd64))
}

func (r *registers) set(pid int) error {
	return registerSet(unix.PTRACE_SETREGSET, pid, unsafe.Pointer(&r.PtraceRegsAmd64), unsafe.Sizeof(r.PtraceRegsAmd64))
}

func (r *registers) prepareSyscall(at, number uintptr, arguments []uintptr) {
	var all [6]uint64
	for index, argument := range arguments {
		all[index] = uint64(argument)
	}
	r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8, r.R9 = all[0], all[1], all[2], all[3], all[4], all[5]
	r.Rax, r.Orig_rax, r.Rip = uint64(number), ^uint64(0), uint64(at)
}

func (r *registers) stack() uintptr { return uintptr(r.Rsp) }

func (r *registers) result() int64 { return int64(r.Rax) }

// restartSyscall does what the kernel does on the way back from an interrupted system call: with -ERESTARTSYS (512) to
// -ERESTART_RESTARTBLOCK (516) in rax the instruction is executed again.
func (r *registers) restartSyscall() {
	if int64(r.Orig_rax) >= 0 && int64(r.Rax) <= -512 && int64(r.Rax) >= -516 {
		r.Rip -= uint64(len(syscallInstruction))
		r.Rax = r.Orig_rax
	}
	r.Orig_rax = ^uint64(0)
}
