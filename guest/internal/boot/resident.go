package boot

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// madvPopulateRead is MADV_POPULATE_READ of madvise(2), Linux 5.14.
const madvPopulateRead = 22

// MakeResident maps every page of the agent's own program, so that the template holds the page tables and no
// restored sandbox has to fault them in one by one.
func MakeResident() {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	for _, line := range strings.Split(string(text), "\n") {
		f := strings.Fields(line)
		if len(f) < 6 || f[5] != "/init" {
			continue
		}
		dash := strings.IndexByte(f[0], '-')
		if dash < 0 {
			continue
		}
		from, err1 := strconv.ParseUint(f[0][:dash], 16, 64)
		to, err2 := strconv.ParseUint(f[0][dash+1:], 16, 64)
		if err1 == nil && err2 == nil {
			_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, uintptr(from), uintptr(to-from), madvPopulateRead)
		}
	}
}
