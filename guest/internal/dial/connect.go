package dial

import (
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"

	"releap/guest/internal/fault"
)

// patience bounds a connect: a server whose backlog is full does not answer.
const patience = 5 * time.Second

// connect opens a connection to 127.0.0.1, or to ::1: servers that listen at "localhost" may use either.
func connect(port int) (*os.File, error) {
	four := &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
	file, err := open(syscall.AF_INET, four)
	if err != nil {
		six := &syscall.SockaddrInet6{Port: port, Addr: [16]byte{15: 1}}
		if file, second := open(syscall.AF_INET6, six); second == nil {
			return file, nil
		}
	}
	switch {
	case err == nil:
		return file, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fault.New(fault.State, "port "+strconv.Itoa(port)+" does not accept connections")
	default:
		return nil, fault.New(fault.NotFound, "nothing listens on port "+strconv.Itoa(port)+": "+err.Error())
	}
}

func open(family int, address syscall.Sockaddr) (*os.File, error) {
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
	err = syscall.Connect(fd, address)
	file := os.NewFile(uintptr(fd), "connection")
	if err == syscall.EINPROGRESS {
		err = accepted(file)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// accepted waits until a connect has ended.
func accepted(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	_ = file.SetWriteDeadline(time.Now().Add(patience))
	var result error
	err = raw.Write(func(fd uintptr) bool {
		if _, failed := syscall.Getpeername(int(fd)); failed == nil {
			return true
		}
		code, failed := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ERROR)
		if failed != nil {
			result = failed
			return true
		}
		if code != 0 {
			result = syscall.Errno(code)
			return true
		}
		return false // not yet
	})
	_ = file.SetWriteDeadline(time.Time{})
	if err != nil {
		return err
	}
	return result
}
