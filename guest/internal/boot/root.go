package boot

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"releap/guest/internal/fault"
)

const (
	lowerDir   = "/releap/lower"
	scratchDir = "/releap/scratch"
	rootDir    = "/releap/root"
	systemDir  = "/releap/system"

	blkFlsBuf = 0x1261
	// systemPatience is how long the driver of the system disk may take to find it.
	systemPatience = 10 * time.Second
	// resizePatience is how long an exchanged disk may take to show its size.
	resizePatience = 10 * time.Second
	// releasePatience is how long a file system may take to give its disk up once nothing uses it.
	releasePatience = 10 * time.Second
)

// MakeDirs that Assemble needs, ahead of time.
func MakeDirs() {
	for _, dir := range []string{lowerDir, scratchDir, rootDir, systemDir} {
		_ = os.MkdirAll(dir, 0o755)
	}
}

// MountSystem mounts the read-only system disk, whose folder root is the lowest layer of the sandbox's root. It never
// changes in the life of a guest, so the template holds it mounted.
func MountSystem(device string) error {
	for end := time.Now().Add(systemPatience); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat("/dev/" + device); err == nil {
			break
		}
		if time.Now().After(end) {
			return fault.New(fault.Internal, "there is no /dev/"+device)
		}
	}
	disk := &Disk{Device: device, Type: "squashfs"}
	return disk.mount(systemDir, syscall.MS_RDONLY|syscall.MS_NODEV|syscall.MS_NOSUID)
}

// lowerLayers of a sandbox's root whose image is mounted at image, as an option of overlayfs.
func lowerLayers(image string) string {
	if _, err := os.Stat(systemDir + "/root"); err == nil { // none in a trial boot
		return "lowerdir=" + image + ":" + systemDir + "/root"
	}
	return "lowerdir=" + image
}

// Assemble mounts the read-only root image under the writable scratch disk, moves into the result for good and
// answers an open folder on the scratch disk. The disks' own mounts stay behind, out of the user's sight. mark is called after each step
// that was made.
func Assemble(root, scratch *Disk, mark func(string)) (*os.File, error) {
	lower := make(chan error, 1)
	go func() { lower <- root.MountImage() }() // two disks, and mostly two processors
	if err := scratch.mount(scratchDir, syscall.MS_NOATIME); err != nil {
		return nil, err
	}
	mark("scratch_disk")
	for _, dir := range []string{"/upper", "/work"} {
		if err := os.Mkdir(scratchDir+dir, 0o755); err != nil && !os.IsExist(err) {
			return nil, fault.New(fault.Code(err), "scratch disk: "+err.Error())
		}
	}
	keep, err := os.Open(scratchDir)
	if err != nil {
		return nil, err
	}
	mark("scratch_folders")
	if err := <-lower; err != nil {
		return nil, err
	}
	mark("root_disk")
	options := lowerLayers(lowerDir) + ",upperdir=" + scratchDir + "/upper,workdir=" + scratchDir + "/work,redirect_dir=on"
	if err := syscall.Mount("overlay", rootDir, "overlay", 0, options); err != nil {
		return nil, fault.New(fault.Internal, "mounting the overlay root: "+err.Error())
	}
	mark("overlay")
	for _, dir := range []string{"/proc", "/sys", "/dev", "/run"} {
		target := rootDir + dir
		if err := folder(target, 0o755); err != nil {
			return nil, err
		}
		if err := syscall.Mount(dir, target, "", syscall.MS_MOVE, ""); err != nil {
			return nil, fault.New(fault.Internal, "moving "+dir+" into the root: "+err.Error())
		}
	}
	if err := folder(rootDir+"/tmp", os.ModeSticky|0o777); err != nil {
		return nil, err
	}
	if err := os.Chdir(rootDir); err != nil {
		return nil, err
	}
	if err := syscall.Mount(".", "/", "", syscall.MS_MOVE, ""); err != nil {
		return nil, fault.New(fault.Internal, "moving the root: "+err.Error())
	}
	if err := syscall.Chroot("."); err != nil {
		return nil, fault.New(fault.Internal, "entering the root: "+err.Error())
	}
	return keep, os.Chdir("/")
}

// MountImage mounts the read-only root image where Assemble takes it from. One that a warm-up has left there stays, if the
// host says that it is the same (Mounted), and is unmounted otherwise.
func (d *Disk) MountImage() error {
	isMounted, err := isMountPoint(lowerDir)
	if err != nil {
		return fault.New(fault.Code(err), err.Error())
	}
	switch {
	case d.Mounted && !isMounted:
		return fault.New(fault.State, "the root image is not mounted yet")
	case d.Mounted:
		return nil
	case isMounted:
		if err := syscall.Unmount(lowerDir, 0); err != nil {
			return fault.New(fault.Internal, "unmounting the former root image: "+err.Error())
		}
	}
	return d.mount(lowerDir, syscall.MS_RDONLY)
}

// isMountPoint compares devices: whatever is mounted there has one of its own.
func isMountPoint(dir string) (bool, error) {
	var here, above syscall.Stat_t
	if err := syscall.Stat(dir, &here); err != nil {
		return false, err
	}
	if err := syscall.Stat(dir+"/..", &above); err != nil {
		return false, err
	}
	return here.Dev != above.Dev, nil
}

// AwaitRelease waits until no file system uses the disk: a mount namespace that has ended unmounts in the background.
func (d *Disk) AwaitRelease() error {
	for end := time.Now().Add(releasePatience); ; time.Sleep(time.Millisecond) {
		// A mounted file system holds its block device exclusively, open(2).
		fd, err := syscall.Open("/dev/"+d.Device, syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_EXCL, 0)
		if err == nil {
			return syscall.Close(fd)
		}
		if err != syscall.EBUSY || time.Now().After(end) {
			return fault.New(fault.Code(err), "/dev/"+d.Device+" is not released: "+err.Error())
		}
	}
}

// MountAt mounts a further disk in the assembled root.
func (d *Disk) MountAt(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return fault.New(fault.Code(err), err.Error())
	}
	return d.mount(dir, syscall.MS_NOATIME)
}

// MountFolder mounts a folder of the scratch disk in the assembled root, beside the overlay: a file system that is the upper
// layer of another overlay cannot lie on one.
func MountFolder(scratch *os.File, name, dir string) error {
	if err := syscall.Mkdirat(int(scratch.Fd()), name, 0o711); err != nil && err != syscall.EEXIST {
		return fault.New(fault.Code(err), "scratch disk: "+err.Error())
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return fault.New(fault.Code(err), err.Error())
	}
	source := "/proc/self/fd/" + strconv.Itoa(int(scratch.Fd())) + "/" + name
	if err := syscall.Mount(source, dir, "", syscall.MS_BIND, ""); err != nil {
		return fault.New(fault.Internal, "mounting "+dir+": "+err.Error())
	}
	return nil
}

// folder makes sure of a real folder: an image may have anything, or a link to anywhere, under that name.
func folder(path string, mode os.FileMode) error {
	if info, err := os.Lstat(path); err == nil && !info.IsDir() {
		if err := os.Remove(path); err != nil {
			return fault.New(fault.Code(err), err.Error())
		}
	}
	if err := os.Mkdir(path, mode); err != nil {
		if os.IsExist(err) {
			return nil
		}
		return fault.New(fault.Code(err), err.Error())
	}
	return os.Chmod(path, mode)
}

func (d *Disk) mount(dir string, flags uintptr) error {
	if err := d.awaitSize(); err != nil {
		return err
	}
	options := ""
	if d.Type == "ext4" && flags&syscall.MS_RDONLY == 0 {
		options = "noinit_itable" // no thread that zeroes tables in the background of a short life
	}
	if err := syscall.Mount("/dev/"+d.Device, dir, d.Type, flags, options); err != nil {
		return fault.New(fault.Internal, "mounting /dev/"+d.Device+" ("+d.Type+"): "+err.Error())
	}
	return nil
}

// awaitSize waits for the size that the host announced and drops what the kernel cached of the device's former
// content.
func (d *Disk) awaitSize() error {
	if d.Bytes > 0 {
		for end := time.Now().Add(resizePatience); ; time.Sleep(500 * time.Microsecond) {
			have := d.size()
			if have == d.Bytes {
				break
			}
			if time.Now().After(end) {
				return fault.New(fault.Internal, "/dev/"+d.Device+" has "+strconv.FormatInt(have, 10)+" bytes, the host announced "+
					strconv.FormatInt(d.Bytes, 10))
			}
		}
	}
	fd, err := syscall.Open("/dev/"+d.Device, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return fault.New(fault.Code(err), "/dev/"+d.Device+": "+err.Error())
	}
	defer syscall.Close(fd)
	if err := call(fd, blkFlsBuf, unsafe.Pointer(nil)); err != nil {
		return fault.New(fault.Internal, "/dev/"+d.Device+": dropping cached pages: "+err.Error())
	}
	return nil
}

func (d *Disk) size() int64 {
	text, err := os.ReadFile("/sys/class/block/" + d.Device + "/size")
	if err != nil {
		return -1
	}
	sectors, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return -1
	}
	return sectors * 512
}
