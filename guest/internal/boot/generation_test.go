package boot

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

func TestEachGenerationHasIdsOfItsOwn(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for mounts")
	}
	// Never unlocked: the thread ends with its mount namespace.
	runtime.LockOSThread()
	if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
		t.Skip("no mount namespace: ", err)
	}
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		t.Skip("mounts cannot be separated: ", err)
	}
	dir, kernel := t.TempDir(), filepath.Join(t.TempDir(), "boot_id")
	defer func() { _ = syscall.Unmount(kernel, syscall.MNT_DETACH) }()
	if err := os.WriteFile(kernel, []byte("of the template\n"), 0o444); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{"of the template\n": true}
	for i := 0; i < 3; i++ {
		if err := newGeneration(dir, uuidSource, kernel); err != nil {
			t.Fatal(err)
		}
		id, err := os.ReadFile(kernel)
		if err != nil {
			t.Fatal(err)
		}
		own, _ := os.ReadFile(filepath.Join(dir, "boot_id"))
		generation, _ := os.ReadFile(filepath.Join(dir, "generation"))
		if seen[string(id)] || seen[string(generation)] || len(id) != 37 || string(own) != string(id) {
			t.Errorf("generation %d: %q, %q, %q", i, id, own, generation)
		}
		seen[string(id)], seen[string(generation)] = true, true
	}
	// A program of the sandbox has removed the file below the mount.
	if err := os.Remove(filepath.Join(dir, "boot_id")); err != nil {
		t.Fatal(err)
	}
	if err := newGeneration(dir, uuidSource, kernel); err != nil {
		t.Fatal(err)
	}
	if id, _ := os.ReadFile(kernel); seen[string(id)] || len(id) != 37 {
		t.Errorf("after the file was removed: %q", id)
	}
}
