package process

import (
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// launcherName is what the agent's own program is called when it starts another one in its place.
const launcherName = "releap-start"

// resultFD is where it tells why it could not.
const resultFD = 3

// startApart starts a program by way of the agent's own, which changes to the folder and executes the program as a
// process of its own. In a file system whose server does not answer, either may take for ever: between fork and exec
// that would hold a processor of the Go runtime, and on a small machine the whole agent.
func (t *Table) startApart(spec Spec) (*Process, *StartError) {
	var result [2]int
	if err := syscall.Pipe2(result[:], syscall.O_CLOEXEC); err != nil {
		return nil, &StartError{CannotExecute, spec.Path + ": " + err.Error()}
	}
	// A pollable file: who waits for it holds no thread.
	_ = syscall.SetNonblock(result[0], true)
	told := os.NewFile(uintptr(result[0]), "start")
	defer told.Close()
	launch := spec
	launch.Path = "/proc/self/exe"
	launch.Argv = append([]string{launcherName, spec.Dir, spec.Path}, spec.Argv...)
	launch.Dir = "/"
	launch.extra = []uintptr{uintptr(result[1])}
	p, bad := t.fork(launch)
	syscall.Close(result[1])
	if bad != nil {
		return nil, bad
	}
	// The end of the pipe comes with the execution of the program: the descriptor is closed by that.
	text, _ := io.ReadAll(told)
	if len(text) == 0 {
		return p, nil
	}
	errno, _ := strconv.Atoi(string(text))
	return nil, explain(syscall.Errno(errno), spec.Path)
}

// Launch makes this process the program that startApart names, if it was started for that. Called first of all.
func Launch() {
	if len(os.Args) < 4 || os.Args[0] != launcherName {
		return
	}
	dir, path, argv := os.Args[1], os.Args[2], os.Args[3:]
	syscall.CloseOnExec(resultFD)
	err := syscall.Chdir(dir)
	if err == nil {
		err = syscall.Exec(path, argv, os.Environ())
	}
	errno, _ := err.(syscall.Errno)
	_, _ = syscall.Write(resultFD, []byte(strconv.Itoa(int(errno))))
	os.Exit(CannotExecute)
}

// answers are the file systems whose answers come from this kernel and its disks alone.
var answers = map[string]bool{
	"autofs": false, "bpf": true, "btrfs": true, "cgroup": true, "cgroup2": true, "configfs": true, "debugfs": true,
	"devpts": true, "devtmpfs": true, "efivarfs": true, "erofs": true, "ext2": true, "ext3": true, "ext4": true,
	"hugetlbfs": true, "iso9660": true, "mqueue": true, "nsfs": true, "overlay": true, "proc": true, "pstore": true,
	"ramfs": true, "rootfs": true, "securityfs": true, "squashfs": true, "sysfs": true, "tmpfs": true, "tracefs": true,
	"vfat": true, "xfs": true,
}

// mayHang tells whether a file system is mounted whose server may not answer: FUSE, a network's, and any not known.
// The list is read for each start: a poll of it does not tell of every mount.
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
		if !answers[kind] {
			return true
		}
	}
	return false
}
