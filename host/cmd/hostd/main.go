// Hostd does for the runner what Node.js cannot ask the kernel for. Each command but serve is one short-lived process that
// talks in lines over its standard streams or only runs to its end; none of them listens on anything.
//
//	hostd serve                         makes and removes network slots, as requests on standard input say (netlink(7))
//	hostd precopy PID ADDRESS BYTES TARGET   copies a VMM's memory while it runs (userfaultfd(2), PAGEMAP_SCAN)
//	hostd apply SOURCE PID ADDRESS BYTES   writes what a sparse file holds into a VMM's memory (/proc/PID/mem)
//	hostd holes PID ADDRESS BYTES FILE  replaces the holes of a file that a VMM maps by anonymous memory (ptrace(2), mmap(2))
//	hostd memfd BYTES                   a memfd that is filled and then sealed (memfd_create(2), F_ADD_SEALS)
//	hostd copy SOURCE TARGET            copies what a sparse file holds; a reflink where the file system can
//	hostd compact SOURCE TARGET         the same without pages that are zero
//	hostd probe-precopy                 how precopy learns what a VMM writes meanwhile
//	hostd clock                         whether the host's clock is synchronized (adjtimex(2))
//	hostd listen-transparent ADDRESS -- COMMAND ...   starts a command with a socket for redirected connections (IP_TRANSPARENT)
//	hostd jail OPTIONS -- COMMAND ...   starts a VMM in its cgroups, limits and namespaces (execve(2))
//	hostd share OPTIONS -- COMMAND ...  starts what serves a folder to a guest, in a user namespace (mount_setattr(2), openat2(2))
//	hostd probe-volumes VIRTIOFSD       tries what volumes need: loop devices, XFS, idmapped mounts, user namespaces, a virtiofsd
//
// It exits with 0, or with 1 and one line on standard error that says what failed.
package main

import (
	"fmt"
	"os"

	"releap/host/internal/clock"
	"releap/host/internal/jail"
	"releap/host/internal/listen"
	"releap/host/internal/memory"
	"releap/host/internal/precopy"
	"releap/host/internal/serve"
)

var commands = map[string]func(args []string) error{
	"precopy":            precopy.Precopy,
	"apply":              memory.Apply,
	"holes":              precopy.Holes,
	"memfd":              memory.Serve,
	"copy":               memory.Copy,
	"compact":            memory.Compact,
	"jail":               jail.Exec,
	"share":              jail.Share,
	jail.ShareChild:      jail.EnterShare,
	"probe-volumes":      jail.ProbeVolumes,
	"probe-precopy":      precopy.Probe,
	"clock":              func([]string) error { return clock.Print(os.Stdout) },
	"listen-transparent": listen.Exec,
	"serve":              func([]string) error { return serve.Serve(os.Stdin, os.Stdout) },
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: hostd precopy|apply|holes|memfd|copy|compact|jail|share|probe-volumes|probe-precopy|clock|listen-transparent|serve ARGUMENT...")
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
