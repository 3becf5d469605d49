package jail

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"releap/host/internal/hosttest"
)

const firstID = 0x8001_0000

// shareFindings are what the command sees of itself.
type shareFindings struct {
	Pid          int
	Files        []string
	Owner        int
	Capabilities []int
	NoNewPrivs   int
	Limits       map[int]uint64
	Device       string
	Escape       string
	Socket       string
}

// shareReport works in the folder as virtiofsd does, prints what it sees on standard error, and ends when it is killed.
func shareReport() {
	said := shareFindings{Limits: map[int]uint64{}}
	said.Pid = os.Getpid()
	_ = filepath.Walk("/", func(path string, _ os.FileInfo, err error) error {
		if !strings.HasPrefix(path, "/proc/self/fd/") {
			said.Files = append(said.Files, path)
		}
		return nil
	})
	var facts unix.Stat_t
	_ = unix.Stat("/data/found", &facts)
	said.Owner = int(facts.Uid)
	for capability := 0; capability < 64; capability++ {
		if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(capability), 0, 0, 0); err == nil && has == 1 {
			said.Capabilities = append(said.Capabilities, capability)
		}
	}
	said.NoNewPrivs, _ = unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	for _, resource := range []int{unix.RLIMIT_CORE, unix.RLIMIT_NOFILE, unix.RLIMIT_NPROC, unix.RLIMIT_MEMLOCK} {
		var limit unix.Rlimit
		_ = unix.Getrlimit(resource, &limit)
		said.Limits[resource] = limit.Cur
	}
	_ = os.WriteFile("/data/made", nil, 0o640)
	_ = os.Chown("/data/made", 1000, 2000)
	said.Device = fmt.Sprint(unix.Mknod("/data/device", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	said.Escape = fmt.Sprint(unix.Mount("none", "/data", "tmpfs", 0, ""))
	if address, err := unix.Getsockname(shareSocket); err == nil {
		said.Socket = address.(*unix.SockaddrUnix).Name
	}
	text, _ := json.Marshal(said)
	fmt.Fprintln(os.Stderr, string(text))
	select {}
}

func shared(args ...string) *exec.Cmd {
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), "SHARE_TEST_ARGS="+strings.Join(args, separator))
	return child
}

func shareArguments(t *testing.T, data string) []string {
	return []string{"--program", program(t), "--data", data, "--ids", fmt.Sprint(firstID), "--nofile", "999", "--nproc", "77",
		"--listen", filepath.Join(t.TempDir(), "socket")}
}

// open makes a folder that other users reach, as that of a test is not.
func open(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	return folder
}

func TestTheServerOfAFolderIsRootOfItsOwnUsersAndSeesNothingElse(t *testing.T) {
	needsRoot(t)
	data := open(t)
	if err := os.WriteFile(filepath.Join(data, "found"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(data, "found"), 1000, 1000); err != nil {
		t.Fatal(err)
	}
	args := shareArguments(t, data)
	// Other users execute it.
	if err := os.Chmod(filepath.Join(args[1], "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	child := shared(append(args, "--", "/vmm/run", "share-report")...)
	messages, err := child.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	_, output := hosttest.Start(t, child)
	if line, _ := output.ReadString('\n'); line != "ready\n" {
		rest, _ := bufio.NewReader(messages).ReadString('\n')
		t.Fatalf("%q %q", line, rest)
	}
	line, _ := bufio.NewReader(messages).ReadBytes('\n')
	var said shareFindings
	if err := json.Unmarshal(line, &said); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	sort.Strings(said.Files)
	expect(t, "files", said.Files, []string{"/", "/data", "/data/found", "/proc", "/proc/self", "/proc/self/fd", "/proc/sys",
		"/proc/sys/fs", "/proc/sys/fs/nr_open", "/vmm", "/vmm/run"})
	mounts := mountsOf(t, said.Pid)
	expect(t, "mount of the folder", mounts["/data"], "rw,nosuid,nodev,noexec,relatime,idmapped -")
	expect(t, "mount of the root", mounts["/"], "ro,nosuid,nodev,noexec,relatime -")
	expect(t, "owner of a file of user 1000", said.Owner, 1000)
	made, err := os.Stat(filepath.Join(data, "made"))
	if err != nil {
		t.Fatal(err)
	}
	owner := made.Sys().(*syscall.Stat_t)
	expect(t, "owner on the disk", []uint32{owner.Uid, owner.Gid}, []uint32{1000, 2000})
	process, err := os.Stat(fmt.Sprintf("/proc/%d", said.Pid))
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "its user on the host", process.Sys().(*syscall.Stat_t).Uid, uint32(firstID))
	expect(t, "capabilities", said.Capabilities, []int{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID,
		unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SETPCAP, unix.CAP_MKNOD, unix.CAP_SETFCAP})
	expect(t, "no new privileges", said.NoNewPrivs, 1)
	expect(t, "limits", said.Limits, map[int]uint64{
		unix.RLIMIT_CORE: 0, unix.RLIMIT_NOFILE: 999, unix.RLIMIT_NPROC: 77, unix.RLIMIT_MEMLOCK: 0,
	})
	refused := unix.EPERM.Error()
	expect(t, "making a device", said.Device, refused)
	expect(t, "mounting", said.Escape, refused)
	expect(t, "its socket", said.Socket, args[len(args)-1])
	for _, name := range []string{"net", "ipc", "mnt", "user"} {
		own, _ := os.Readlink("/proc/self/ns/" + name)
		if its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", said.Pid, name)); err != nil || its == own {
			t.Errorf("it shares its %s namespace with the host (%v)", name, err)
		}
	}
	// It ends with the process that waits for it.
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", said.Pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			break
		}
		time.Sleep(time.Millisecond)
	}
}

func TestAServerThatCannotStartSaysWhy(t *testing.T) {
	needsRoot(t)
	data := open(t)
	if err := os.Symlink("/etc", filepath.Join(data, "link")); err != nil {
		t.Fatal(err)
	}
	good := shareArguments(t, data)
	with := func(more ...string) []string { return append(append([]string{}, good...), more...) }
	for wanted, args := range map[string][]string{
		"usage":                     good,
		`"link" is a symbolic link`: with("--subpath", "link/deeper", "--", "/vmm/run"),
		"no such file":              with("--", "/vmm/missing"),
		"/proc/self/missing":        with("--program", "/proc/self/missing", "--", "/vmm/run"),
		"cannot join a cgroup":      with("--cgroup", "/proc/self/missing", "--", "/vmm/run"),
		"user namespace":            with("--ids", "4294967295", "--", "/vmm/run"),
	} {
		output, err := shared(args...).CombinedOutput()
		if err == nil || !strings.Contains(string(output), wanted) {
			t.Errorf("%v: %q, %v", args[len(good):], output, err)
		}
	}
}

func TestAPathBeneathAFolderNeverLeavesIt(t *testing.T) {
	needsRoot(t)
	data, outside := open(t), open(t)
	for _, step := range []error{
		os.MkdirAll(filepath.Join(data, "here/below"), 0o700),
		os.Symlink(outside, filepath.Join(data, "away")),
		os.Symlink("here", filepath.Join(data, "near")),
		os.Symlink("/proc/self/root", filepath.Join(data, "here/magic")),
		os.WriteFile(filepath.Join(data, "file"), nil, 0o600),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	for _, subpath := range []string{"", "here", "here/below", "new/and/deeper", "./here//below"} {
		folder, err := openBeneath(data, subpath)
		if err != nil {
			t.Errorf("%q: %v", subpath, err)
			continue
		}
		found, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", folder))
		expect(t, subpath, found, filepath.Join(data, subpath))
		_ = unix.Close(folder)
	}
	made, err := os.Stat(filepath.Join(data, "new/and"))
	if err != nil || made.Mode() != os.ModeDir|0o755 {
		t.Errorf("a folder that was made: %v, %v", made, err)
	}
	for subpath, wanted := range map[string]error{
		"away": errLink, "away/deeper": errLink, "near/below": errLink, "here/magic/etc": errLink, "file": errFile,
		"file/deeper": errFile, "..": errParent, "here/../../x": errParent,
	} {
		if folder, err := openBeneath(data, subpath); !errors.Is(err, wanted) {
			t.Errorf("%q: %d, %v", subpath, folder, err)
		}
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("something was made outside: %v", left)
	}
}
