package precopy

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// copyTarget is what pages are copied to, at the places that they have in the memory.
type copyTarget interface {
	WriteAt(content []byte, at int64) (int, error)
	// isHole tells whether a page reads as zeros because nothing was written to it.
	isHole(at uintptr) bool
	// withSmallPages has the kernel back what is written with small pages until the returned function is called.
	withSmallPages() (end func())
	Close() error
}

// openTarget opens a file, or for "PID:ADDRESS" the memory of a process.
func openTarget(name string, size uintptr) (copyTarget, error) {
	if strings.HasPrefix(name, "/") {
		file, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return nil, err
		}
		return fileTarget{file}, nil
	}
	pid, address, isMemory := strings.Cut(name, ":")
	if !isMemory {
		return nil, fmt.Errorf("neither an absolute path nor PID:ADDRESS: %q", name)
	}
	numbers, err := parseNumbers([]string{pid, address, "0"})
	if err != nil {
		return nil, err
	}
	return openMemory(int(numbers[0]), uintptr(numbers[1]), size)
}

type fileTarget struct{ *os.File }

func (f fileTarget) isHole(at uintptr) bool {
	data, err := unix.Seek(int(f.Fd()), int64(at), unix.SEEK_DATA)
	return errors.Is(err, unix.ENXIO) || err == nil && data >= int64(at+pageBytes)
}

func (f fileTarget) withSmallPages() func() {
	return func() {}
}

// memoryTarget is the memory of a VMM whose guest has not run: what it maps there privately does not change.
type memoryTarget struct {
	pid           int
	address, size uintptr
	anonymous     []region
	pagemap       *os.File
}

func openMemory(pid int, address, size uintptr) (copyTarget, error) {
	anonymous, err := anonymousRegions(pid)
	if err != nil {
		return nil, err
	}
	pagemap, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return nil, err
	}
	return memoryTarget{pid: pid, address: address, size: size, anonymous: anonymous, pagemap: pagemap}, nil
}

func (m memoryTarget) WriteAt(content []byte, at int64) (int, error) {
	local := unix.Iovec{Base: &content[0]}
	local.SetLen(len(content))
	remote := unix.RemoteIovec{Base: m.address + uintptr(at), Len: len(content)}
	count, err := unix.ProcessVMWritev(m.pid, []unix.Iovec{local}, []unix.RemoteIovec{remote}, 0)
	if err != nil {
		return 0, fmt.Errorf("cannot write the memory of process %d: %w", m.pid, err)
	}
	if count != len(content) {
		return count, fmt.Errorf("process %d took only %d of %d bytes", m.pid, count, len(content))
	}
	return count, nil
}

func (m memoryTarget) isHole(at uintptr) bool {
	page := m.address + at
	if !isWithin(m.anonymous, page) {
		return false
	}
	entries, err := readEntries(m.pagemap, page, page+pageBytes)
	return err == nil && entries[0]&(entryPresent|entrySwapped) == 0
}

// Where free huge pages have been given back to the host of this machine (free page reporting), it takes two to three times as long to
// copy to new ones. What the guest writes to afterwards gets them, as Holes has it.
func (m memoryTarget) withSmallPages() func() {
	m.advise(unix.MADV_NOHUGEPAGE)
	return func() { m.advise(unix.MADV_HUGEPAGE) }
}

// advise does nothing where the process cannot be traced, or the kernel has no huge pages: the content does not depend on it.
func (m memoryTarget) advise(advice uintptr) {
	process, err := newProcess(m.pid)
	if err != nil {
		return
	}
	_ = process.whileStopped(func(thread *stoppedThread) error {
		_, err := thread.syscall(unix.SYS_MADVISE, m.address, m.size, advice)
		return err
	})
}

func (m memoryTarget) Close() error {
	return m.pagemap.Close()
}
