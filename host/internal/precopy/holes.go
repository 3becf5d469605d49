package precopy

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sort"

	"golang.org/x/sys/unix"

	"releap/host/internal/memory"
)

// A process may have 65,530 mappings (vm.max_map_count).
const holesMax = 1024

// restBytes of small holes are not worth mappings of their own: each takes two context switches, while a start waits.
var restBytes uintptr = 8 << 20

// Holes replaces the holes of the sparse file FILE, which process PID maps privately at ADDRESS for BYTES bytes, by anonymous memory:
// that of a guest that has not run yet. The content stays the same, but the kernel serves the first write to a page of a hole of a
// file from a page that it allocates in the file first, so that each would take its memory twice, and never be huge.
//
// It prints how many bytes of holes remain mapped from the file: those that are small, or too many.
func Holes(args []string) error {
	if len(args) != 4 {
		return errors.New("usage: hostd holes PID ADDRESS BYTES FILE")
	}
	numbers, err := parseNumbers(args[:3])
	if err != nil {
		return err
	}
	pid, start, size := int(numbers[0]), uintptr(numbers[1]), uintptr(numbers[2])
	holes, err := holesOf(args[3], size)
	if err != nil {
		return err
	}
	chosen, rest := largestHoles(holes)
	runtime.LockOSThread()
	vmm, err := newProcess(pid)
	if err != nil {
		return err
	}
	err = vmm.whileStopped(func(thread *stoppedThread) error {
		for _, one := range chosen {
			if err := thread.mapAnonymous(start+one.start, one.end-one.start); err != nil {
				return err
			}
		}
		// As QEMU has it for all of its guest's memory.
		for _, advice := range []uintptr{unix.MADV_DONTDUMP, unix.MADV_DONTFORK, unix.MADV_HUGEPAGE} {
			// A kernel without huge pages has no such advice.
			result, err := thread.syscall(unix.SYS_MADVISE, start, size, advice)
			if err != nil || result != 0 && result != -int64(unix.EINVAL) {
				return fmt.Errorf("madvise(%d): %d (%v)", advice, result, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Println(rest)
	return nil
}

// mapAnonymous replaces a mapping.
func (t *stoppedThread) mapAnonymous(start, size uintptr) error {
	flags := uintptr(unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED)
	result, err := t.syscall(unix.SYS_MMAP, start, size, unix.PROT_READ|unix.PROT_WRITE, flags, ^uintptr(0), 0)
	if err != nil || uintptr(result) != start {
		return fmt.Errorf("cannot map %#x bytes at %#x: %d (%v)", size, start, result, err)
	}
	return nil
}

// holesOf gives the whole pages of a file without data.
func holesOf(path string, size uintptr) ([]region, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || uintptr(info.Size()) != size {
		return nil, fmt.Errorf("%s is not of a guest with %d bytes of memory (%v)", path, size, err)
	}
	var holes []region
	end := uintptr(0)
	add := func(start, next uintptr) {
		if start, next = (start+pageBytes-1)&^(pageBytes-1), next&^(pageBytes-1); start < next {
			holes = append(holes, region{start: start, end: next})
		}
	}
	err = memory.EachExtent(file, func(from, to int64) error {
		add(end, uintptr(from))
		end = uintptr(to)
		return nil
	})
	add(end, size)
	return holes, err
}

// largestHoles gives those that are worth a mapping, in the order of their places, and how many bytes the others have.
func largestHoles(holes []region) (chosen []region, rest uintptr) {
	for _, one := range holes {
		rest += one.end - one.start
	}
	sort.Slice(holes, func(a, b int) bool { return holes[a].end-holes[a].start > holes[b].end-holes[b].start })
	for _, one := range holes {
		if rest <= restBytes || len(chosen) == holesMax {
			break
		}
		chosen = append(chosen, one)
		rest -= one.end - one.start
	}
	sort.Slice(chosen, func(a, b int) bool { return chosen[a].start < chosen[b].start })
	return chosen, rest
}
