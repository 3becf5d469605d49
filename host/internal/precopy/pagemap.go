package precopy

import (
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst, soft-dirty.rst).
const (
	entryBytes   = 8
	entryPresent = 1 << 63
	entrySwapped = 1 << 62
	entryOfFile  = 1 << 61
	entryMarked  = 1 << 55
)

// isOwn tells an anonymous page.
func isOwn(entry uint64) bool {
	return entry&entrySwapped != 0 || entry&entryPresent != 0 && entry&entryOfFile == 0
}

// copyEntries copies the pages whose entries match.
func (c *preCopier) copyEntries(matches func(entry uint64) bool) (int64, error) {
	return c.eachWindow(func(from, end uintptr) ([]region, error) {
		entries, err := readEntries(c.pagemap, from, end)
		if err != nil {
			return nil, fmt.Errorf("cannot read the page map of process %d: %w", c.pid, err)
		}
		var found []region
		for index, entry := range entries {
			if !matches(entry) {
				continue
			}
			page := from + uintptr(index)*pageBytes
			if last := len(found) - 1; last >= 0 && found[last].end == page {
				found[last].end += pageBytes
			} else {
				found = append(found, region{start: page, end: page + pageBytes})
			}
		}
		return found, nil
	})
}

func readEntries(pagemap *os.File, from, end uintptr) ([]uint64, error) {
	text := make([]byte, (end-from)/pageBytes*entryBytes)
	if _, err := pagemap.ReadAt(text, int64(from/pageBytes*entryBytes)); err != nil {
		return nil, err
	}
	entries := make([]uint64, len(text)/entryBytes)
	for index := range entries {
		entries[index] = binary.LittleEndian.Uint64(text[index*entryBytes:])
	}
	return entries, nil
}

// resetMarks has the kernel mark from now on the pages that a process writes to.
func resetMarks(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("4"), 0)
}

// canMark tries it with a page of this process: a kernel that cannot accepts the request, too.
func canMark() bool {
	page, err := unix.Mmap(-1, 0, int(pageBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Munmap(page) }()
	pagemap, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return false
	}
	defer pagemap.Close()
	at := uintptr(unsafe.Pointer(&page[0]))
	isMarked := func() bool {
		entries, err := readEntries(pagemap, at, at+pageBytes)
		return err == nil && entries[0]&entryMarked != 0
	}
	page[0] = 1
	if resetMarks(os.Getpid()) != nil || isMarked() {
		return false
	}
	page[0] = 2
	return isMarked()
}
