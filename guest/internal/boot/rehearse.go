package boot

import (
	"os"
	"runtime"
	"syscall"
)

const rehearsalDir = "/run/rehearsal"

// Rehearse walks the ways that a sandbox's first moments go (a new process, two disks, an overlay, a few files), in a
// mount namespace of its own, with disks that will be exchanged. Nothing stays of it but that an emulator has
// translated the code by the time somebody waits for it. Run as a child of the agent of a machine without a sandbox.
func Rehearse(root, scratch *Disk) error {
	// A mount namespace belongs to a thread, and goroutines move between threads.
	runtime.LockOSThread()
	if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
		return err
	}
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := os.MkdirAll(rehearsalDir, 0o700); err != nil {
		return err
	}
	defer os.Remove(rehearsalDir)
	if err := syscall.Mount("rehearsal", rehearsalDir, "tmpfs", 0, ""); err != nil {
		return err
	}
	defer syscall.Unmount(rehearsalDir, 0)
	const lower, upper, merged = rehearsalDir + "/lower", rehearsalDir + "/scratch", rehearsalDir + "/root"
	for _, dir := range []string{lower, upper, merged} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := root.mount(lower, syscall.MS_RDONLY); err != nil {
		return err
	}
	defer syscall.Unmount(lower, 0)
	if err := scratch.mount(upper, syscall.MS_NOATIME); err != nil {
		return err
	}
	defer syscall.Unmount(upper, 0)
	options := lowerLayers(lower) + ",upperdir=" + upper + "/upper,workdir=" + upper + "/work,redirect_dir=on"
	if err := syscall.Mount("overlay", merged, "overlay", 0, options); err != nil {
		return err
	}
	defer syscall.Unmount(merged, 0)
	if err := folder(merged+"/tmp", os.ModeSticky|0o777); err != nil {
		return err
	}
	if err := os.WriteFile(merged+"/tmp/file", []byte("rehearsal\n"), 0o600); err != nil {
		return err
	}
	return runShell(merged)
}

// runShell runs the image's shell on the merged root: most commands start with one.
func runShell(dir string) error {
	if _, err := os.Stat(dir + "/bin/sh"); err != nil {
		return nil
	}
	process, err := os.StartProcess("/bin/sh", []string{"/bin/sh", "-c", "true"}, &os.ProcAttr{
		Dir: "/",
		Sys: &syscall.SysProcAttr{Chroot: dir},
	})
	if err != nil {
		return err
	}
	_, err = process.Wait()
	return err
}
