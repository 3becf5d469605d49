package boot

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"releap/guest/internal/fault"
)

const (
	bootID     = "/proc/sys/kernel/random/boot_id"
	uuidSource = "/proc/sys/kernel/random/uuid"
	// The folder that has the ids as ordinary files. Programs that keep random state of their own watch its file "generation".
	generationDir = "/run/releap"
)

// NewGeneration gives this copy of the guest's memory a boot id and a generation id of its own: the kernel's boot id is that of the
// template, which all sandboxes of a size were restored from, and that of a fork is its parent's. The kernel's generator must have been
// seeded anew before. The files are rewritten in place, so that those who have them open or mounted see the new content.
func NewGeneration() error { return newGeneration(generationDir, uuidSource, bootID) }

func newGeneration(dir, source, bootID string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fault.New(fault.Code(err), err.Error())
	}
	for _, name := range []string{"boot_id", "generation"} {
		// Each read is another random UUID.
		id, err := os.ReadFile(source)
		if err != nil {
			return fault.New(fault.Code(err), err.Error())
		}
		if err := replace(filepath.Join(dir, name), string(id)); err != nil {
			return err
		}
	}
	own := filepath.Join(dir, "boot_id")
	if isSame(own, bootID) {
		return nil
	}
	// A file that a program of the sandbox has removed is still mounted, and nothing can be mounted over it.
	_ = syscall.Unmount(bootID, syscall.MNT_DETACH)
	if err := syscall.Mount(own, bootID, "", syscall.MS_BIND, ""); err != nil {
		return fault.New(fault.Code(err), bootID+": "+err.Error())
	}
	// What a bind mount is to be besides is set by a second call.
	const flags = syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY | syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC
	if err := syscall.Mount("", bootID, "", flags, ""); err != nil {
		return fault.New(fault.Code(err), bootID+": "+err.Error())
	}
	return nil
}

func isSame(one, other string) bool {
	a, err := os.ReadFile(one)
	if err != nil {
		return false
	}
	b, err := os.ReadFile(other)
	return err == nil && strings.TrimSpace(string(a)) == strings.TrimSpace(string(b))
}
