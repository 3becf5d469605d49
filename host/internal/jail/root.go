package jail

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Where the command finds its folders. It opens inherited descriptors by name as fdDir/N.
const (
	programDir = "vmm"
	folderDir  = "vm"
	fdDir      = "dev/fd"
	kvmDevice  = "dev/kvm"
)

// tree is a part of the host's file system that the new root has.
type tree struct {
	// source on the host and target in the new root.
	source, target string
	// attributes of the mount, as for mount_setattr(2).
	attributes uint64
	// userns, if not 0, is a descriptor of the user namespace whose ids the mount shows (MOUNT_ATTR_IDMAP).
	userns int

	// descriptor of the source; opened by enterRoot unless it is set.
	descriptor int
}

const mountFlags = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV

func trees(program, folder string, withKvm bool) []tree {
	var all []tree
	if program != "" {
		all = append(all, tree{source: program, target: programDir, attributes: mountFlags | unix.MOUNT_ATTR_RDONLY})
	}
	all = append(all, []tree{
		{source: folder, target: folderDir, attributes: mountFlags | unix.MOUNT_ATTR_NOEXEC},
		// Of procfs this one folder: the process stays the same when it executes the command.
		{source: "/proc/self/fd", target: fdDir, attributes: mountFlags | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_RDONLY},
	}...)
	if withKvm {
		attributes := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC)
		all = append(all, tree{source: "/" + kvmDevice, target: kvmDevice, attributes: attributes})
	}
	return all
}

// binding is a file or folder of the host, and its absolute path in the new root.
type binding struct{ source, target string }

type bindings []binding

func (b *bindings) String() string { return fmt.Sprint(*b) }

// Set parses FROM=TO.
func (b *bindings) Set(value string) error {
	at := strings.LastIndexByte(value, '=')
	if at < 1 || !path.IsAbs(value[at+1:]) || path.Clean(value[at+1:]) == "/" {
		return errors.New("not FROM=TO with absolute paths")
	}
	*b = append(*b, binding{source: value[:at], target: path.Clean(value[at+1:])[1:]})
	return nil
}

// bound gives the trees of what the command may only read, of what it may execute as well, and of folders that it may write to.
func bound(readable, executable, writable bindings) []tree {
	var all []tree
	for _, one := range writable {
		all = append(all, tree{source: one.source, target: one.target, attributes: mountFlags | unix.MOUNT_ATTR_NOEXEC})
	}
	for _, one := range readable {
		attributes := uint64(mountFlags | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_RDONLY)
		all = append(all, tree{source: one.source, target: one.target, attributes: attributes})
	}
	for _, one := range executable {
		all = append(all, tree{source: one.source, target: one.target, attributes: mountFlags | unix.MOUNT_ATTR_RDONLY})
	}
	return all
}

// enterRoot replaces the root of the calling thread, and the host's mounts in its mount namespace, by a small read-only file
// system that has nothing but these trees. The thread must have a mount namespace of its own.
func enterRoot(all []tree) error {
	for index := range all {
		if all[index].descriptor != 0 {
			continue
		}
		// As the thread sees it now: in a chroot, paths are those of the chroot.
		descriptor, err := unix.Open(all[index].source, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", all[index].source, err)
		}
		all[index].descriptor = descriptor
	}
	if err := leaveChroot(); err != nil {
		return fmt.Errorf("cannot leave the chroot: %w", err)
	}
	// Nothing that is mounted or unmounted from here on reaches the host.
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("cannot separate the mounts: %w", err)
	}
	root, err := mountTmpfs()
	if err != nil {
		return fmt.Errorf("cannot mount the new root: %w", err)
	}
	for _, one := range all {
		if err := one.mountIn(root); err != nil {
			return fmt.Errorf("cannot mount %s: %w", one.source, err)
		}
	}
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(root, "", unix.AT_EMPTY_PATH, &readOnly); err != nil {
		return fmt.Errorf("cannot make the new root read-only: %w", err)
	}
	if err := unix.Fchdir(root); err != nil {
		return err
	}
	// The former root is mounted over the new one, and then unmounted with all that is below it: pivot_root(2), "NOTES".
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("cannot detach the former root: %w", err)
	}
	return unix.Chdir("/")
}

// leaveChroot sets the root of the calling thread to that of its mount namespace, which setns(2) does: pivot_root(2) replaces
// no other one.
func leaveChroot() error {
	// Not /proc/self: that is the main thread's namespace, which is the host's.
	space, err := unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(space)
	return unix.Setns(space, unix.CLONE_NEWNS)
}

// mountTmpfs mounts a tmpfs for a few folders and opens it. It is mounted over a folder that every machine has and that nothing
// here needs any more.
func mountTmpfs() (int, error) {
	const target, flags = "/proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("releap-jail", target, "tmpfs", flags, "size=16k,nr_inodes=64,mode=0755"); err != nil {
		return -1, err
	}
	return unix.Open(target, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// makeFolders makes the folders that a path in the new root leads through.
func makeFolders(root int, target string) error {
	for at, char := range target {
		if char != '/' {
			continue
		}
		if err := unix.Mkdirat(root, target[:at], 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}

func (t *tree) mountIn(root int) error {
	if err := makeFolders(root, t.target); err != nil {
		return err
	}
	var facts unix.Stat_t
	if err := unix.Fstat(t.descriptor, &facts); err != nil {
		return err
	}
	if facts.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := unix.Mkdirat(root, t.target, 0o755); err != nil {
			return err
		}
	} else {
		file, err := unix.Openat(root, t.target, unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_ = unix.Close(file)
	}
	clone, err := unix.OpenTree(t.descriptor, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(clone)
	wanted := unix.MountAttr{Attr_set: t.attributes}
	if t.userns != 0 {
		wanted.Attr_set |= unix.MOUNT_ATTR_IDMAP
		wanted.Userns_fd = uint64(t.userns)
	}
	if err := unix.MountSetattr(clone, "", unix.AT_EMPTY_PATH, &wanted); err != nil {
		return err
	}
	return unix.MoveMount(clone, "", root, t.target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
