// Package boot makes a running system out of a bare kernel, in two stages: Prepare does all that needs no
// knowledge of the sandbox, before the template is captured; the rest happens in every sandbox after restore.
package boot

import (
	"os"
	"syscall"
)

// FreezerDir is where the agent's private freezer hierarchy is mounted, below the root that user space leaves.
const FreezerDir = "/releap/freezer"

type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
	optional             bool
}

// Mounts made in the initramfs. Those below dev, proc, sys and run move into the sandbox's root later.
var early = []mount{
	{"proc", "/proc", "proc", syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC, "", false},
	{"sysfs", "/sys", "sysfs", syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC, "", false},
	{"devtmpfs", "/dev", "devtmpfs", syscall.MS_NOSUID, "mode=0755", false},
	{"devpts", "/dev/pts", "devpts", syscall.MS_NOSUID | syscall.MS_NOEXEC, "gid=5,mode=620,ptmxmode=666", false},
	{"shm", "/dev/shm", "tmpfs", syscall.MS_NOSUID | syscall.MS_NODEV, "mode=1777", false},
	{"mqueue", "/dev/mqueue", "mqueue", syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC, "", true},
	{"run", "/run", "tmpfs", syscall.MS_NOSUID | syscall.MS_NODEV, "mode=0755,size=25%", false},
	{"cgroup2", "/sys/fs/cgroup", "cgroup2", syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC, "nsdelegate", true},
	{"freezer", FreezerDir, "cgroup", syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC, "freezer", true},
}

var links = [][2]string{
	{"/proc/self/fd", "/dev/fd"}, {"/proc/self/fd/0", "/dev/stdin"},
	{"/proc/self/fd/1", "/dev/stdout"}, {"/proc/self/fd/2", "/dev/stderr"},
}

// Settings of the kernel that a sandbox expects; a missing one is no failure.
var settings = [][2]string{
	{"net/ipv4/ping_group_range", "0 2147483647"}, // ping without privileges
	{"net/ipv4/ip_unprivileged_port_start", "0"},  // an image's user may serve port 80, as in containers
	{"net/ipv6/conf/default/disable_ipv6", "1"},   // only the loopback has IPv6: the sandbox's network has none
	{"vm/overcommit_memory", "1"},
	{"fs/inotify/max_user_watches", "524288"},
	{"kernel/printk", "1 4 1 7"}, // the console log is the user's, only emergencies of the kernel belong there
}

// Mount what every sandbox needs.
func Mount() error {
	for _, m := range early {
		if err := os.MkdirAll(m.target, 0o755); err != nil && !m.optional {
			return err
		}
		if err := syscall.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil && !m.optional {
			return &os.PathError{Op: "mount", Path: m.target, Err: err}
		}
	}
	for _, l := range links {
		_ = os.Symlink(l[0], l[1])
	}
	return nil
}

// Tune sets kernel settings and limits that every process inherits.
func Tune() {
	for _, s := range settings {
		_ = os.WriteFile("/proc/sys/"+s[0], []byte(s[1]), 0)
	}
	_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 65536, Max: 1048576})
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{Cur: 0, Max: ^uint64(0)})
	const nproc = 6 // RLIMIT_NPROC; the kernel's default grows with memory and is tiny in a small sandbox
	_ = syscall.Setrlimit(nproc, &syscall.Rlimit{Cur: ^uint64(0), Max: ^uint64(0)})
	_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_CAD_OFF)
}
