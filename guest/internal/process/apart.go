package process

import (
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// launcherName is argv[0] of the agent's own program when it only executes another one.
const launcherName = "releap-start"

// firstFD follows standard error: descriptors of sockets, and then the one to which the launcher writes its error.
const firstFD = 3

// startApart starts a program in two steps: the agent's own program becomes a process of its own, which changes the directory and
// executes the program. On a file system whose server does not respond, both may block for ever: between fork and exec
// that would block a processor of the Go runtime, and on a small machine the whole agent.
func (t *Table) startApart(spec Spec) (*Process, *StartError) {
	var result [2]int
	if err := syscall.Pipe2(result[:], syscall.O_CLOEXEC); err != nil {
		return nil, &StartError{CannotExecute, spec.Path + ": " + err.Error()}
	}
	// A pollable file: waiting for it blocks no thread.
	_ = syscall.SetNonblock(result[0], true)
	told := os.NewFile(uintptr(result[0]), "start")
	defer told.Close()
	launch := spec
	launch.Path = "/proc/self/exe"
	launch.Argv = append([]string{launcherName, strconv.Itoa(len(spec.Sockets)), spec.Dir, spec.Path}, spec.Argv...)
	launch.Dir = "/"
	launch.extra = []uintptr{uintptr(result[1])}
	p, bad := t.fork(launch)
	syscall.Close(result[1])
	if bad != nil {
		return nil, bad
	}
	// execve(2) closes the descriptor, so the pipe ends when the program is executed.
	text, _ := io.ReadAll(told)
	if len(text) == 0 {
		return p, nil
	}
	errno, _ := strconv.Atoi(string(text))
	return nil, explain(syscall.Errno(errno), spec.Path)
}

// Launch makes this process the program that startApart names, if it was started for that. Called first of all.
func Launch() {
	if len(os.Args) < 5 || os.Args[0] != launcherName {
		return
	}
	sockets, dir, path, argv := os.Args[1], os.Args[2], os.Args[3], os.Args[4:]
	number, _ := strconv.Atoi(sockets)
	resultFD := firstFD + number
	syscall.CloseOnExec(resultFD)
	env := os.Environ()
	if number > 0 {
		env = append(env, "LISTEN_FDS="+sockets, "LISTEN_PID="+strconv.Itoa(os.Getpid()))
	}
	err := syscall.Chdir(dir)
	if err == nil {
		err = syscall.Exec(path, argv, env)
	}
	errno, _ := err.(syscall.Errno)
	_, _ = syscall.Write(resultFD, []byte(strconv.Itoa(int(errno))))
	os.Exit(CannotExecute)
}

// localTypes are the file systems that only this kernel and its disks serve.
var localTypes = map[string]bool{
	"autofs": false, "bpf": true, "btrfs": true, "cgroup": true, "cgroup2": true, "configfs": true, "debugfs": true,
	"devpts": true, "devtmpfs": true, "efivarfs": true, "erofs": true, "ext2": true, "ext3": true, "ext4": true,
	"hugetlbfs": true, "iso9660": true, "mqueue": true, "nsfs": true, "overlay": true, "proc": true, "pstore": true,
	"ramfs": true, "rootfs": true, "securityfs": true, "squashfs": true, "sysfs": true, "tmpfs": true, "tracefs": true,
	"vfat": true, "xfs": true,
}

// mayHang tells whether a file system is mounted whose server may not respond: FUSE, network file systems, and unknown ones.
// The list is read for each start, as a poll of it does not report every mount.
func mayHang() bool {
	text, err := os.ReadFile("/proc/self/mountinfo")
	return err != nil || hasServer(string(text))
}

// hasServer reads mountinfo, proc(5): the type of a file system comes after a lone hyphen.
func hasServer(mountinfo string) bool {
	for _, line := range strings.Split(mountinfo, "\n") {
		at := strings.Index(line, " - ")
		if at < 0 {
			continue
		}
		kind := line[at+len(" - "):]
		if end := strings.IndexByte(kind, ' '); end >= 0 {
			kind = kind[:end]
		}
		if !localTypes[kind] {
			return true
		}
	}
	return false
}
