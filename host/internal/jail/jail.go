// Package jail starts a VMM where it can reach nothing but its own files.
package jail

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"

	"golang.org/x/sys/unix"
)

type paths []string

func (p *paths) String() string         { return fmt.Sprint(*p) }
func (p *paths) Set(value string) error { *p = append(*p, value); return nil }

// Exec turns this process into the command after "--":
//
//	--netns PATH|new   the network namespace, or an empty one of its own
//	--nofile N         most open files (RLIMIT_NOFILE)
//	--fsize-kib N      largest file that it may write (RLIMIT_FSIZE)
//	--nproc N          most threads of the user that it becomes (RLIMIT_NPROC)
//	--root DIR         becomes a mount of its own without devices, programs and set-user-ID, for -chroot
//	--cgroup FILE      a cgroup.procs to join first, so that none of its memory or time counts elsewhere; may be repeated
//
// The command gets System V IPC and POSIX message queues of its own and a mount namespace that only follows the host's. It
// can lock no memory, leaves no core dumps, and no program that it might execute gives it privileges that it does not have
// (PR_SET_NO_NEW_PRIVS). It still starts as root: QEMU opens what it needs and then gives up root by itself (-run-with,
// -sandbox).
func Exec(args []string) error {
	flags := flag.NewFlagSet("jail", flag.ContinueOnError)
	flags.SetOutput(os.Stderr)
	netns := flags.String("netns", "", "network namespace: a path or new")
	nofile := flags.Uint64("nofile", 0, "RLIMIT_NOFILE")
	fsizeKib := flags.Uint64("fsize-kib", 0, "RLIMIT_FSIZE in KiB")
	nproc := flags.Uint64("nproc", 0, "RLIMIT_NPROC")
	root := flags.String("root", "", "folder that becomes a mount")
	var cgroups paths
	flags.Var(&cgroups, "cgroup", "cgroup.procs file to join")
	if err := flags.Parse(args); err != nil {
		return err
	}
	command := flags.Args()
	if len(command) == 0 || *netns == "" || *nofile == 0 || *fsizeKib == 0 || *nproc == 0 || *root == "" {
		return errors.New("usage: hostd jail --netns PATH|new --nofile N --fsize-kib N --nproc N --root DIR [--cgroup FILE]... " +
			"-- COMMAND [ARGUMENT]...")
	}
	program, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	for _, procs := range cgroups {
		if err := join(procs); err != nil {
			return fmt.Errorf("cannot join a cgroup: %w", err)
		}
	}
	// Namespaces belong to a thread, and execve(2) keeps those of the thread that calls it.
	runtime.LockOSThread()
	if err := enterNamespaces(*netns); err != nil {
		return err
	}
	if err := bindRoot(*root); err != nil {
		return fmt.Errorf("cannot make a mount of %s: %w", *root, err)
	}
	err = limit(map[int]uint64{
		unix.RLIMIT_CORE:    0,
		unix.RLIMIT_NOFILE:  *nofile,
		unix.RLIMIT_FSIZE:   *fsizeKib * 1024,
		unix.RLIMIT_NPROC:   *nproc,
		unix.RLIMIT_MEMLOCK: 0,
	})
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot rule out new privileges: %w", err)
	}
	// A VMM has no children of its own, but its copy-on-write clones are born as such and it waits for none of them: where
	// SIGCHLD is ignored, which execve(2) keeps, the kernel reaps them.
	signal.Ignore(unix.SIGCHLD)
	return fmt.Errorf("cannot execute %s: %w", program, unix.Exec(program, command, os.Environ()))
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
	if netns == "new" {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("cannot make a network namespace: %w", err)
		}
	} else {
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
	// What the host unmounts is unmounted here too, or a deleted network namespace would live on in this one; nothing
	// that is mounted here reaches the host.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("cannot separate the mounts: %w", err)
	}
	return nil
}

// bindRoot makes a folder a mount in this namespace: what is in it can be opened, and nothing in it gives any power.
func bindRoot(root string) error {
	if err := unix.Mount(root, root, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

func limit(limits map[int]uint64) error {
	for resource, value := range limits {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: value, Max: value}); err != nil {
			return fmt.Errorf("cannot set resource limit %d to %d: %w", resource, value, err)
		}
	}
	return nil
}
