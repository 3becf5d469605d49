package jail

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refused are system calls that a program which reads files, computes and perhaps speaks TCP does without: those that reach
// other processes, change namespaces and mounts, start programs or threads of the kernel's, or have had many defects.
var refused = []uint32{
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_KCMP,
	unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO,
	unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_GETFD, unix.SYS_PIDFD_SEND_SIGNAL,
	unix.SYS_EXECVEAT, unix.SYS_UNSHARE, unix.SYS_SETNS,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
	unix.SYS_MKNODAT, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_PERSONALITY, unix.SYS_QUOTACTL, unix.SYS_SYSLOG, unix.SYS_ACCT, unix.SYS_REBOOT, unix.SYS_SWAPON,
}

const (
	offsetNumber = 0
	offsetArch   = 4
	// Lower half of the first argument, on a little-endian machine.
	offsetFirst = 16
	// System call numbers of the x32 ABI have this bit.
	x32Bit = 0x4000_0000

	// What a filter returns: linux/seccomp.h.
	allow   = 0x7fff_0000
	kill    = 0x8000_0000
	refuse  = 0x0005_0000 | uint32(unix.EPERM)
	unknown = 0x0005_0000 | uint32(unix.ENOSYS)
)

// confine filters the system calls of the calling thread, and of all that it becomes. Threads can be made, processes cannot.
// Signals reach threads of the own process alone.
func confine(withNetwork, withUnix bool) error {
	program := filter(withNetwork, withUnix, uint32(os.Getpid()))
	wanted := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&wanted)), 0, 0)
}

func filter(withNetwork, withUnix bool, pid uint32) []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	// Continues with the next instruction if equal, and otherwise skips `skip` instructions.
	unless := func(value uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: skip}
	}
	answer := func(value uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: value}
	}
	anyBit := func(bits uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: bits, Jf: skip}
	}
	program := []unix.SockFilter{
		load(offsetArch),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: auditArch, Jt: 1},
		answer(kill),
		load(offsetNumber),
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: x32Bit, Jf: 1},
		answer(unknown),
	}
	for _, number := range append(append([]uint32{}, refused...), refusedHere...) {
		program = append(program, unless(number, 1), answer(refuse))
	}
	// Its arguments lie in memory, which a filter cannot see: the C library then uses clone(2).
	program = append(program, unless(unix.SYS_CLONE3, 1), answer(unknown))
	program = append(program, unless(unix.SYS_CLONE, 4), load(offsetFirst), anyBit(unix.CLONE_THREAD, 1),
		answer(allow), answer(refuse))
	program = append(program, unless(unix.SYS_TGKILL, 4), load(offsetFirst), unless(pid, 1),
		answer(allow), answer(refuse))
	families := []uint32{}
	if withNetwork {
		// Resolvers of names look up the machine's addresses with AF_NETLINK.
		families = []uint32{unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}
	}
	if withUnix {
		families = append(families, unix.AF_UNIX)
	}
	program = append(program, unless(unix.SYS_SOCKET, uint8(2+2*len(families))), load(offsetFirst))
	for _, family := range families {
		program = append(program, unless(family, 1), answer(allow))
	}
	program = append(program, answer(refuse))
	return append(program, answer(allow))
}
