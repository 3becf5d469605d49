package process

import (
	"strconv"
	"syscall"
	"unsafe"
)

type winsize struct{ rows, cols, x, y uint16 }

// OpenTerminal makes a pseudo-terminal: the master's descriptor (non-blocking) and the other end's. The owner of
// the latter is the user of the process that gets it.
func OpenTerminal(rows, cols uint16, user User) (master, slave int, err error) {
	master, err = syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return -1, -1, err
	}
	var number, unlock int32
	if err = ioctl(master, syscall.TIOCGPTN, unsafe.Pointer(&number)); err == nil {
		err = ioctl(master, syscall.TIOCSPTLCK, unsafe.Pointer(&unlock))
	}
	name := "/dev/pts/" + strconv.Itoa(int(number))
	if err == nil {
		slave, err = syscall.Open(name, syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
	}
	if err != nil {
		syscall.Close(master)
		return -1, -1, err
	}
	_ = syscall.Fchown(slave, int(user.UID), -1)
	_ = Resize(master, rows, cols)
	return master, slave, nil
}

// Resize a terminal; its foreground process group gets SIGWINCH.
func Resize(master int, rows, cols uint16) error {
	size := winsize{rows: rows, cols: cols}
	return ioctl(master, syscall.TIOCSWINSZ, unsafe.Pointer(&size))
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
