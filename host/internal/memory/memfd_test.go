package memory

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestSealWaitsForWhatStillUsesThePages(t *testing.T) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	memory := os.NewFile(uintptr(fd), "memfd")
	defer memory.Close()
	if err := memory.Truncate(int64(pageBytes)); err != nil {
		t.Fatal(err)
	}
	// Sealing is refused with the same EBUSY while a mapping can be written.
	used, err := unix.Mmap(fd, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealAll); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("sealed in use: %v", err)
	}
	freed := make(chan error, 1)
	time.AfterFunc(300*time.Millisecond, func() { freed <- unix.Munmap(used) })
	if err := seal(memory); err != nil {
		t.Fatal(err)
	}
	if err := <-freed; err != nil {
		t.Fatal(err)
	}
	if _, err := memory.WriteAt([]byte{1}, 0); !errors.Is(err, unix.EPERM) {
		t.Fatalf("written after it was sealed: %v", err)
	}
}
