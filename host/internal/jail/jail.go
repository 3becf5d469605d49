// Package jail starts a program, a VMM or one that reads images, where it can reach nothing but its own files.
package jail

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

type paths []string

func (p *paths) String() string         { return fmt.Sprint(*p) }
func (p *paths) Set(value string) error { *p = append(*p, value); return nil }

// Exec turns this process into the command after "--", whose program is named as the command sees it:
//
//	--program DIR      becomes /vmm of the command, read-only
//	--folder DIR       becomes /vm of the command, without devices, programs and set-user-ID
//	--read FROM=TO     a file or folder of the host that the command reads at TO; may be repeated
//	--execute FROM=TO  the same for a program or library
//	--write FROM=TO    a folder of the host in which the command may make files and sockets at TO; may be repeated
//	--kvm              the command has /dev/kvm
//	--netns PATH|new|host  the network namespace, an empty one of its own, or that of the host
//	--confine          system calls that such a program never needs are refused
//	--unix             it may use unix sockets all the same, and as root give those that it makes to another user
//	--nofile N         most open files (RLIMIT_NOFILE)
//	--fsize-kib N      largest file that it may write (RLIMIT_FSIZE)
//	--nproc N          most threads of the user that it becomes (RLIMIT_NPROC)
//	--cgroup FILE      a cgroup.procs to join first, so that none of its memory or time counts elsewhere; may be repeated
//	--tap NAME=FD      a tap of that network namespace, open as descriptor FD
//	--listen PATH=FD   a unix socket that listens at PATH, as descriptor FD; may be repeated
//	--connect PATH=FD  a unix socket that is connected to PATH, as descriptor FD; may be repeated
//
// The root of the command is a read-only file system that has these folders, its own descriptors as /dev/fd, and nothing else
// of the host. It gets System V IPC and POSIX message queues of its own, can lock no memory, leaves no core dumps, and no
// program that it might execute gives it privileges that it does not have (PR_SET_NO_NEW_PRIVS). It starts as root with only the
// capabilities to open root's files and to give root up by itself, as QEMU does (-run-with, -sandbox).
func Exec(args []string) error {
	flags := flag.NewFlagSet("jail", flag.ContinueOnError)
	flags.SetOutput(os.Stderr)
	program := flags.String("program", "", "folder of the command")
	folder := flags.String("folder", "", "folder of its files")
	withKvm := flags.Bool("kvm", false, "whether it has /dev/kvm")
	netns := flags.String("netns", "", "network namespace: a path, new or host")
	withUnix := flags.Bool("unix", false, "whether it uses unix sockets")
	confined := flags.Bool("confine", false, "whether its system calls are filtered")
	nofile := flags.Uint64("nofile", 0, "RLIMIT_NOFILE")
	fsizeKib := flags.Uint64("fsize-kib", 0, "RLIMIT_FSIZE in KiB")
	nproc := flags.Uint64("nproc", 0, "RLIMIT_NPROC")
	var cgroups paths
	flags.Var(&cgroups, "cgroup", "cgroup.procs file to join")
	var readable, executable, writable bindings
	flags.Var(&readable, "read", "source=target")
	flags.Var(&executable, "execute", "source=target")
	flags.Var(&writable, "write", "source=target")
	var taps, sockets, connections placements
	flags.Var(&taps, "tap", "tap=descriptor")
	flags.Var(&sockets, "listen", "path of a unix socket=descriptor")
	flags.Var(&connections, "connect", "path of a unix socket=descriptor")
	if err := flags.Parse(args); err != nil {
		return err
	}
	command := flags.Args()
	if len(command) == 0 || (*program == "" && len(executable) == 0) || *folder == "" || *netns == "" || *nofile == 0 || *fsizeKib == 0 || *nproc == 0 {
		return errors.New("usage: hostd jail --program DIR --folder DIR [--read FROM=TO]... [--execute FROM=TO]... [--write FROM=TO]... [--kvm] [--confine] [--unix] " +
			"--netns PATH|new|host --nofile N --fsize-kib N --nproc N [--cgroup FILE]... [--tap NAME=FD] [--listen PATH=FD]... [--connect PATH=FD]... " +
			"-- COMMAND [ARGUMENT]...")
	}
	if err := reserve(); err != nil {
		return fmt.Errorf("cannot reserve descriptors: %w", err)
	}
	for _, procs := range cgroups {
		if err := join(procs); err != nil {
			return fmt.Errorf("cannot join a cgroup: %w", err)
		}
	}
	if err := sockets.open(listen); err != nil {
		return err
	}
	if err := connections.open(connect); err != nil {
		return err
	}
	// Namespaces and capabilities belong to a thread, and execve(2) keeps those of the thread that calls it.
	runtime.LockOSThread()
	if err := enterNamespaces(*netns); err != nil {
		return err
	}
	if err := taps.open(openTap); err != nil {
		return err
	}
	if err := enterRoot(append(trees(*program, *folder, *withKvm), bound(readable, executable, writable)...)); err != nil {
		return fmt.Errorf("cannot make a root of its own: %w", err)
	}
	err := limit(map[int]uint64{
		unix.RLIMIT_CORE:    0,
		unix.RLIMIT_NOFILE:  *nofile,
		unix.RLIMIT_FSIZE:   *fsizeKib * 1024,
		unix.RLIMIT_NPROC:   *nproc,
		unix.RLIMIT_MEMLOCK: 0,
	})
	if err != nil {
		return err
	}
	kept := map[uintptr]bool{unix.CAP_CHOWN: *withUnix}
	for capability, isKept := range keptCapabilities {
		kept[capability] = isKept
	}
	if err := dropPrivileges(kept); err != nil {
		return err
	}
	environment := os.Environ()
	if err := append(append(taps, sockets...), connections...).place(); err != nil {
		return err
	}
	if *confined {
		if err := confine(*netns != "new", *withUnix); err != nil {
			return fmt.Errorf("cannot filter its system calls: %w", err)
		}
	}
	return fmt.Errorf("cannot execute %s: %w", command[0], unix.Exec(command[0], command, environment))
}

// join writes our pid to a cgroup.procs, which has to exist already (cgroups(7)).
func join(procs string) error {
	file, err := os.OpenFile(procs, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = fmt.Fprint(file, os.Getpid())
	return err
}

func enterNamespaces(netns string) error {
	switch netns {
	case "host":
	case "new":
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("cannot make a network namespace: %w", err)
		}
	default:
		file, err := os.Open(netns)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("cannot enter network namespace %s: %w", netns, err)
		}
	}
	// A thread that shares its root and working directory with others (CLONE_FS) cannot leave their mount namespace;
	// CLONE_NEWNS implies to unshare them.
	if err := unix.Unshare(unix.CLONE_NEWIPC | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("cannot make IPC and mount namespaces: %w", err)
	}
	return nil
}

// What a command that starts as root keeps: to open what root's service has given it, with any owner, to change to
// the folder that it is chrooted into, and to become another user.
var keptCapabilities = map[uintptr]bool{
	unix.CAP_DAC_OVERRIDE: true,
	unix.CAP_SYS_CHROOT:   true,
	unix.CAP_SETUID:       true,
	unix.CAP_SETGID:       true,
}

// dropPrivileges bounds the capabilities that execve(2) gives to root, and rules out new privileges.
func dropPrivileges(kept map[uintptr]bool) error {
	for capability := uintptr(0); ; capability++ {
		if kept[capability] {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // It is beyond the last one that the kernel has.
		}
		if err != nil {
			return fmt.Errorf("cannot drop capability %d: %w", capability, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot rule out new privileges: %w", err)
	}
	return nil
}

func limit(limits map[int]uint64) error {
	for resource, value := range limits {
		// The service may have less itself, and in a container root cannot raise it.
		var own unix.Rlimit
		if err := unix.Getrlimit(resource, &own); err == nil && own.Max < value {
			value = own.Max
		}
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: value, Max: value}); err != nil {
			return fmt.Errorf("cannot set resource limit %d to %d: %w", resource, value, err)
		}
	}
	return nil
}
