package jail

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// refusedHere are those that other architectures do not have.
var refusedHere = []uint32{
	unix.SYS_FORK, unix.SYS_VFORK, unix.SYS_MKNOD, unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT,
}
