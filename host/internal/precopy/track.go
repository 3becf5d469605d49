package precopy

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// include/uapi/linux/fs.h and userfaultfd.h; missing in the x/sys that we use.
const (
	ioctlPagemapScan = 0xc0606610
	ioctlUffdAPI     = 0xc018aa3f
	ioctlUffdReg     = 0xc020aa00

	scanProtect      = 1 << 0 // PM_SCAN_WP_MATCHING
	scanCheckTracked = 1 << 1 // PM_SCAN_CHECK_WPASYNC
	pageWritten      = 1 << 1
	pageOfFile       = 1 << 2
	pagePresent      = 1 << 3
	pageSwapped      = 1 << 4
	pageZero         = 1 << 5

	uffdUserModeOnly  = 1
	uffdAPIVersion    = 0xaa
	uffdWpUnpopulated = 1 << 13
	uffdWpAsync       = 1 << 15
	uffdRegisterWp    = 1 << 1
)

type region struct {
	start, end uintptr
	categories uint64
}

// scanArg is struct pm_scan_arg.
type scanArg struct {
	size, flags                     uint64
	start, end, walkEnd, vec        uintptr
	vecLen, maxPages                uint64
	inverted, mask, anyOf, returned uint64
}

// scan gives how many regions it has put into c.found, most at most.
func (c *preCopier) scan(arg *scanArg, most int) (int, error) {
	arg.size = uint64(unsafe.Sizeof(*arg))
	arg.vec, arg.vecLen = 0, uint64(most)
	if most > 0 {
		arg.vec = uintptr(unsafe.Pointer(&c.found[0]))
	}
	count, _, errno := unix.Syscall(unix.SYS_IOCTL, c.pagemap.Fd(), ioctlPagemapScan, uintptr(unsafe.Pointer(arg)))
	if errno != 0 {
		return 0, fmt.Errorf("PAGEMAP_SCAN of process %d: %w", c.pid, errno)
	}
	return int(count), nil
}

var errUnsupported = errors.New("the kernel cannot track writes")

// track begins to track writes, unless an earlier call has. Tracking lasts until the process ends: to end it sooner would keep the
// process from changing its mappings for as long as all of them are looked at.
func (c *preCopier) track() error {
	first := scanArg{flags: scanCheckTracked, start: c.start, end: c.start + pageBytes, mask: pageWritten, returned: pageWritten}
	switch _, err := c.scan(&first, 1); {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL):
		return errUnsupported
	case !errors.Is(err, unix.EPERM):
		return err
	}
	vmm, err := newProcess(c.pid)
	if err != nil {
		return err
	}
	return vmm.whileStopped(func(thread *stoppedThread) error {
		fd, err := thread.syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK|uffdUserModeOnly)
		if err != nil {
			return err
		}
		switch errno := unix.Errno(-fd); {
		case fd >= 0:
		case errno == unix.ENOSYS, errno == unix.EINVAL, errno == unix.EPERM:
			return errUnsupported
		default:
			return fmt.Errorf("userfaultfd: %w", errno)
		}
		api := [4]uint64{uffdAPIVersion, uffdWpAsync | uffdWpUnpopulated}
		register := [4]uint64{uint64(c.start), uint64(c.end - c.start), uffdRegisterWp}
		result, err := thread.syscallWith(unix.SYS_IOCTL, uintptr(fd), ioctlUffdAPI, &api)
		if err == nil && result == 0 {
			result, err = thread.syscallWith(unix.SYS_IOCTL, uintptr(fd), ioctlUffdReg, &register)
		}
		if err == nil && result == 0 {
			return nil
		}
		_, _ = thread.syscall(unix.SYS_CLOSE, uintptr(fd))
		if err == nil {
			err = errUnsupported
		}
		return err
	})
}
