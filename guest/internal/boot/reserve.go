package boot

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	"releap/guest/internal/fault"
)

const (
	hugePages = "/proc/sys/vm/nr_hugepages"
	compact   = "/proc/sys/vm/compact_memory"

	mapHugeTLB = 0x40000
)

// Reserve withholds bytes of the machine's memory from the sandbox, in whole huge pages, and returns how many it got. The kernel
// allocates the pages of its huge page pool without writing to them, so that the host never has to back them. The mapping,
// which is never touched, keeps them reserved when the pool's size is changed.
func Reserve(bytes int64) (int64, error) {
	size, err := hugePageBytes()
	if err != nil {
		return 0, err
	}
	pages := bytes / size
	if pages == 0 {
		return 0, nil
	}
	had, err := poolPages()
	if err != nil {
		return 0, err
	}
	got := int64(0)
	for try := 0; try < 2 && got < pages; try++ {
		if try > 0 { // free memory is fragmented
			_ = os.WriteFile(compact, []byte("1"), 0)
		}
		if err := os.WriteFile(hugePages, []byte(strconv.FormatInt(had+pages, 10)), 0); err != nil {
			return 0, err
		}
		now, err := poolPages()
		if err != nil {
			return 0, err
		}
		got = now - had
	}
	if got <= 0 {
		return 0, nil
	}
	_, err = syscall.Mmap(-1, 0, int(got*size), syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON|mapHugeTLB)
	if err != nil {
		_ = os.WriteFile(hugePages, []byte(strconv.FormatInt(had, 10)), 0)
		return 0, fault.New(fault.Internal, "reserved memory cannot be mapped: "+err.Error())
	}
	return got * size, nil
}

func poolPages() (int64, error) {
	text, err := os.ReadFile(hugePages)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// hugePageBytes reads the size of a default huge page from /proc/meminfo.
func hugePageBytes() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for _, line := range strings.Split(string(text), "\n") {
		f := strings.Fields(line)
		if len(f) >= 2 && f[0] == "Hugepagesize:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib * 1024, err
		}
	}
	return 0, fault.New(fault.Internal, "the guest's kernel has no huge pages (CONFIG_HUGETLBFS), so only sandboxes of a machine's full size can start")
}
