package jail

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// The smallest file system that mkfs.xfs makes. Its log, 64 MiB, is all that takes memory.
	probeBytes = 300 << 20
	// A folder that every host has. The file system is mounted over it, in a mount namespace of its own.
	probeMount = "/sys"
	// Below the ids of servers of volumes (share-server.ts).
	probeIDs = 0x7fff_0000
	// The loop device that is free may be taken by another process first.
	loopAttempts = 20
)

// ProbeVolumes tries in turn what volumes need of a host: mkfs.xfs, a loop device, a mount of XFS, a mount of it with the ids of a
// user namespace, and a virtiofsd, unpacked in a folder, that starts in its jail. It uses a file in memory and a mount namespace
// of its own, so nothing is left however it ends.
//
// @returns the first that does not work, named as an operator knows it, and why
func ProbeVolumes(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: hostd probe-volumes VIRTIOFSD")
	}
	runtime.LockOSThread()
	if err := enterNamespaces("new"); err != nil {
		return err
	}
	image, err := formatProbe()
	if err != nil {
		return fmt.Errorf("mkfs.xfs (package xfsprogs): %w", err)
	}
	defer image.Close()
	device, err := attachLoop(image)
	if err != nil {
		return fmt.Errorf("loop devices (kernel module loop): %w", err)
	}
	defer device.Close()
	program, err := unix.Open(args[0], unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("virtiofsd (unpacked by set-up): %s: %w", args[0], err)
	}
	// In a chroot, its root may not be a mount.
	if err := leaveChroot(); err != nil {
		return fmt.Errorf("cannot leave the chroot: %w", err)
	}
	// What the host unmounts is unmounted here too, and no mount of here reaches the host.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("cannot separate the mounts: %w", err)
	}
	if err := unix.Mount(descriptorPath(device.Fd()), probeMount, "xfs", unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("XFS (kernel module xfs): %w", err)
	}
	return probeShare(descriptorPath(uintptr(program)))
}

func descriptorPath(descriptor uintptr) string { return fmt.Sprintf("/proc/self/fd/%d", descriptor) }

// formatProbe makes a file system with the features of those of volumes (xfs-disks.ts).
func formatProbe() (*os.File, error) {
	descriptor, err := unix.MemfdCreate("releap-probe", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	image := os.NewFile(uintptr(descriptor), "memory")
	if err := image.Truncate(probeBytes); err != nil {
		return nil, err
	}
	format := exec.Command("mkfs.xfs", "-q", "-K", "-m", "reflink=1", "-i", "maxpct=0", "/proc/self/fd/3")
	format.ExtraFiles = []*os.File{image}
	format.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if output, err := format.CombinedOutput(); err != nil {
		return nil, withOutput(err, output)
	}
	return image, nil
}

// attachLoop gives a loop device with the file's content, which the kernel detaches after its last use.
func attachLoop(image *os.File) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(image.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
	for attempt := 1; ; attempt++ {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, err
		}
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", number), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device, nil
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) || attempt == loopAttempts {
			return nil, err
		}
	}
}

// loaders have a name of their own on each architecture, ld.so(8).
var loaders = map[string]string{"amd64": "ld-linux-x86-64.so.2", "arm64": "ld-linux-aarch64.so.1"}

// probeShare starts the virtiofsd of a folder, which only prints its version, as Share does for a sandbox.
func probeShare(program string) error {
	folder, err := openBeneath(probeMount, "data")
	if err != nil {
		return fmt.Errorf("XFS (kernel module xfs): %w", err)
	}
	loader := "/" + programDir + "/lib/" + loaders[runtime.GOARCH]
	library := "/" + programDir + "/lib"
	command := []string{loader, "--inhibit-cache", "--library-path", library, "/" + programDir + "/bin/virtiofsd", "--version"}
	var output bytes.Buffer
	options := childOptions{firstID: probeIDs, command: command, output: &output}
	child, control, err := startChild(options)
	if err != nil {
		return fmt.Errorf("user namespaces (sysctl user.max_user_namespaces): %w", err)
	}
	err = configure(child.Process.Pid, program, folder, nil, control)
	_ = unix.Close(control)
	ended := child.Wait()
	if err != nil {
		return fmt.Errorf("idmapped mounts of XFS (Linux 5.12 or newer): %w", err)
	}
	if ended != nil {
		return fmt.Errorf("virtiofsd (unpacked by set-up): %w", withOutput(ended, output.Bytes()))
	}
	return nil
}

// withOutput adds the first line of a program's output to its error.
func withOutput(err error, output []byte) error {
	if line := strings.SplitN(strings.TrimSpace(string(output)), "\n", 2)[0]; line != "" {
		return fmt.Errorf("%w: %s", err, line)
	}
	return err
}
