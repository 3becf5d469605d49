package jail

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// ShareChild is the command of hostd that Share starts in the new user namespace.
	ShareChild = "share-child"
	// Where the command finds the folder that it serves, and its own descriptors.
	dataDir   = "data"
	procFdDir = "proc/self/fd"
	nrOpen    = "proc/sys/fs/nr_open"
	// Ids of a user namespace: all that a file system of a guest usually has.
	shareIds = 65536
	// Descriptors of the command and of the child before it.
	shareSocket  = 3
	childControl = 4
)

// What a program needs that creates files for any user of its namespace. They have no effect outside of it.
var shareCapabilities = map[uintptr]bool{
	unix.CAP_CHOWN:        true,
	unix.CAP_DAC_OVERRIDE: true,
	unix.CAP_FOWNER:       true,
	unix.CAP_FSETID:       true,
	unix.CAP_MKNOD:        true,
	unix.CAP_SETFCAP:      true,
	unix.CAP_SETGID:       true,
	unix.CAP_SETUID:       true,
	// virtiofsd drops all others by itself, and then this one.
	unix.CAP_SETPCAP: true,
}

// Share runs the command after "--", prints "ready\n" and waits for its end. The command is root of a user namespace of its own, sees one folder of the host
// with the ids of that namespace, and nothing else:
//
//	--program DIR   becomes /vmm of the command, read-only
//	--data DIR      root of the folder
//	--subpath PATH  the folder below it, which is made if it does not exist; no part of the path may be a link
//	--ids N         first of the 65,536 users and groups of the host that those of the namespace are; files keep the namespace's
//	--nofile N      most open files (RLIMIT_NOFILE)
//	--nproc N       most threads (RLIMIT_NPROC)
//	--cgroup FILE   a cgroup.procs to join first; may be repeated
//	--listen PATH   a unix socket that listens at PATH is its descriptor 3
//
// The folder is mounted at /data: without devices, programs and set-user-ID. The command has an empty network namespace, IPC of
// its own, no core dumps, and no program that it might execute gives it privileges.
func Share(args []string) error {
	flags := flag.NewFlagSet("share", flag.ContinueOnError)
	flags.SetOutput(os.Stderr)
	program := flags.String("program", "", "folder of the command")
	data := flags.String("data", "", "root of the folder that it serves")
	subpath := flags.String("subpath", "", "path below that root")
	ids := flags.Uint("ids", 0, "first id on the host")
	nofile := flags.Uint64("nofile", 0, "RLIMIT_NOFILE")
	nproc := flags.Uint64("nproc", 0, "RLIMIT_NPROC")
	socketPath := flags.String("listen", "", "path of a unix socket")
	var cgroups paths
	flags.Var(&cgroups, "cgroup", "cgroup.procs file to join")
	if err := flags.Parse(args); err != nil {
		return err
	}
	command := flags.Args()
	if len(command) == 0 || *program == "" || *data == "" || *ids == 0 || *nofile == 0 || *nproc == 0 || *socketPath == "" {
		return errors.New("usage: hostd share --program DIR --data DIR [--subpath PATH] --ids N --nofile N --nproc N " +
			"[--cgroup FILE]... --listen PATH -- COMMAND [ARGUMENT]...")
	}
	for _, procs := range cgroups {
		if err := join(procs); err != nil {
			return fmt.Errorf("cannot join a cgroup: %w", err)
		}
	}
	socket, err := listen(*socketPath)
	if err != nil {
		return err
	}
	// Namespaces belong to a thread, and so does the death signal of its child.
	runtime.LockOSThread()
	if err := enterNamespaces("new"); err != nil {
		return err
	}
	// Only now: what is mounted in another mount namespace cannot be mounted here.
	folder, err := openBeneath(*data, *subpath)
	if err != nil {
		return err
	}
	listener, err := duplicate(socket)
	if err != nil {
		return err
	}
	child, control, err := startChild(childOptions{firstID: int(*ids), command: command, socket: listener, output: os.Stderr})
	if err != nil {
		return fmt.Errorf("cannot make a user namespace: %w", err)
	}
	_ = listener.Close()
	_ = unix.Close(socket)
	err = configure(child.Process.Pid, *program, folder, map[int]uint64{
		unix.RLIMIT_CORE:    0,
		unix.RLIMIT_NOFILE:  *nofile,
		unix.RLIMIT_NPROC:   *nproc,
		unix.RLIMIT_MEMLOCK: 0,
	}, control)
	// Without its root the child ends.
	_ = unix.Close(control)
	if err == nil {
		fmt.Println("ready")
	}
	if ended := child.Wait(); err == nil && ended != nil {
		err = fmt.Errorf("%s: %w", command[0], ended)
	}
	return err
}

type childOptions struct {
	// First id on the host.
	firstID int
	// What the child executes.
	command []string
	// Its descriptor 3, if it is not nil.
	socket *os.File
	output io.Writer
}

// startChild starts this program again as root of a new user namespace, where it waits for its root folder.
func startChild(options childOptions) (*exec.Cmd, int, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, err
	}
	theirs := os.NewFile(uintptr(ends[1]), "control")
	defer theirs.Close()
	child := exec.Command("/proc/self/exe", append([]string{ShareChild}, options.command...)...)
	child.Stdout, child.Stderr = options.output, options.output
	child.ExtraFiles = []*os.File{options.socket, theirs}
	mapping := []syscall.SysProcIDMap{{ContainerID: 0, HostID: options.firstID, Size: shareIds}}
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:                 unix.CLONE_NEWUSER,
		UidMappings:                mapping,
		GidMappings:                mapping,
		GidMappingsEnableSetgroups: true,
		Credential:                 &syscall.Credential{Uid: 0, Gid: 0},
		Pdeathsig:                  unix.SIGKILL,
	}
	if err := child.Start(); err != nil {
		_ = unix.Close(ends[0])
		return nil, -1, err
	}
	return child, ends[0], nil
}

func duplicate(descriptor int) (*os.File, error) {
	copied, err := unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, lastDescriptor+1)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(copied), "socket"), nil
}

// configure makes the root of the child, sets its limits and sends it the root.
func configure(pid int, program string, folder int, limits map[int]uint64, control int) error {
	userns, err := unix.Open(fmt.Sprintf("/proc/%d/ns/user", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for resource, value := range limits {
		err := unix.Prlimit(pid, resource, &unix.Rlimit{Cur: value, Max: value}, nil)
		// In a container that may not raise limits (CAP_SYS_RESOURCE), the one that is set stays.
		if err != nil && !(resource == unix.RLIMIT_NOFILE && errors.Is(err, unix.EPERM)) {
			return fmt.Errorf("cannot set resource limit %d to %d: %w", resource, value, err)
		}
	}
	err = enterRoot([]tree{
		{source: program, target: programDir, attributes: mountFlags | unix.MOUNT_ATTR_RDONLY},
		{source: fmt.Sprintf("/proc/%d/fd", pid), target: procFdDir,
			attributes: mountFlags | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_RDONLY},
		// Read by virtiofsd at its start.
		{source: "/" + nrOpen, target: nrOpen, attributes: mountFlags | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_RDONLY},
		{source: dataDir, target: dataDir, descriptor: folder, userns: userns, attributes: mountFlags | unix.MOUNT_ATTR_NOEXEC},
	})
	if err != nil {
		return fmt.Errorf("cannot make a root of its own: %w", err)
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Sendmsg(control, []byte{byte(shareSocket)}, unix.UnixRights(root), nil, 0)
}

// EnterShare is the child in the user namespace: it takes its root, gives up what the command does not need, and becomes it.
func EnterShare(command []string) error {
	if len(command) == 0 {
		return errors.New("usage: hostd share-child COMMAND [ARGUMENT]...")
	}
	runtime.LockOSThread()
	root, err := receiveRoot(childControl)
	if err != nil {
		return err
	}
	// pivot_root(2) has replaced the root of this process too, unless it was in a chroot.
	if err := unix.Fchdir(root); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	_ = unix.Close(root)
	unix.CloseOnExec(childControl)
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	// Go would otherwise restore the limit that it has found at its start.
	if err := limit(map[int]uint64{unix.RLIMIT_NOFILE: files.Max}); err != nil {
		return err
	}
	if err := dropPrivileges(shareCapabilities); err != nil {
		return err
	}
	return fmt.Errorf("cannot execute %s: %w", command[0], unix.Exec(command[0], command, os.Environ()))
}

func receiveRoot(control int) (int, error) {
	data, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, length, _, _, err := unix.Recvmsg(control, data, rights, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:length])
	if err != nil || len(messages) != 1 {
		return -1, errors.New("the process that starts it has ended: " + strconv.Itoa(len(messages)) + " descriptors")
	}
	descriptors, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(descriptors) != 1 {
		return -1, errors.New("no descriptor of a root")
	}
	return descriptors[0], nil
}
