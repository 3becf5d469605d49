package jail

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"releap/host/internal/hosttest"
)

// separator cannot be in an argument of a test.
const separator = "\x1f"

// The tests start their own program again as the one that becomes the command, which is that program once more.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "report" {
		report()
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "share-report" {
		shareReport()
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "reserve-report" {
		reserveReport()
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "--inhibit-cache" {
		fakeVirtiofsd()
		return
	}
	if len(os.Args) > 1 && os.Args[1] == ShareChild {
		os.Stderr.WriteString(fmt.Sprint(EnterShare(os.Args[2:])))
		os.Exit(1)
	}
	for name, start := range map[string]func([]string) error{
		"JAIL_TEST_ARGS": Exec, "SHARE_TEST_ARGS": Share, "VOLUMES_TEST_ARGS": ProbeVolumes,
	} {
		args := os.Getenv(name)
		if args == "" {
			continue
		}
		if err := start(strings.Split(args, separator)); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// findings are what the command sees of itself.
type findings struct {
	Files          []string
	Capabilities   []int
	NoNewPrivs     int
	Limits         map[int]uint64
	ProgramWrite   string
	RootWrite      string
	FolderWrite    string
	FolderExec     string
	Device         string
	Inherited      string
	AddressOfFirst string
	Signal         string
	Sockets        map[int]string
	Thread         string
}

// report prints what the command sees, and ends when standard input does.
func report() {
	said := findings{Limits: map[int]uint64{}}
	_ = filepath.Walk("/", func(path string, _ os.FileInfo, err error) error {
		if !strings.HasPrefix(path, "/dev/fd/") {
			said.Files = append(said.Files, path)
		}
		return nil
	})
	for capability := 0; capability < 64; capability++ {
		if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(capability), 0, 0, 0); err == nil && has == 1 {
			said.Capabilities = append(said.Capabilities, capability)
		}
	}
	said.NoNewPrivs, _ = unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	for _, resource := range []int{unix.RLIMIT_CORE, unix.RLIMIT_NOFILE, unix.RLIMIT_FSIZE, unix.RLIMIT_NPROC, unix.RLIMIT_MEMLOCK} {
		var limit unix.Rlimit
		_ = unix.Getrlimit(resource, &limit)
		said.Limits[resource] = limit.Max
	}
	said.ProgramWrite = fmt.Sprint(os.WriteFile("/vmm/new", nil, 0o600))
	said.RootWrite = fmt.Sprint(os.Mkdir("/new", 0o700))
	said.FolderWrite = fmt.Sprint(os.WriteFile("/vm/new", nil, 0o600))
	said.FolderExec = fmt.Sprint(exec.Command("/vm/program", "report").Run())
	_, err := os.Open("/vm/device")
	said.Device = fmt.Sprint(err)
	content, err := os.ReadFile("/dev/fd/3")
	said.Inherited = fmt.Sprint(string(content), err)
	if address, err := unix.Getsockname(8); err == nil {
		said.AddressOfFirst = address.(*unix.SockaddrUnix).Name
	}
	said.Signal = fmt.Sprint(unix.Kill(os.Getppid(), 0))
	said.Sockets = map[int]string{}
	for _, family := range []int{unix.AF_INET, unix.AF_UNIX, unix.AF_VSOCK} {
		socket, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		said.Sockets[family] = fmt.Sprint(err)
		_ = unix.Close(socket)
	}
	said.Thread = fmt.Sprint(unix.Tgkill(os.Getpid(), unix.Gettid(), 0))
	text, _ := json.Marshal(said)
	fmt.Println(string(text))
	bufio.NewScanner(os.Stdin).Scan()
}

func needsRoot(t *testing.T) {
	t.Helper()
	hosttest.NeedsRoot(t, "it makes namespaces")
}

// program gives a folder with this very program as `run`.
func program(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "run"), content, 0o700); err != nil {
		t.Fatal(err)
	}
	return folder
}

func jailed(args ...string) *exec.Cmd {
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), "JAIL_TEST_ARGS="+strings.Join(args, separator))
	child.Stderr = os.Stderr
	return child
}

func atLeast(netns string) []string {
	return []string{"--netns", netns, "--nofile", "99", "--fsize-kib", "3", "--nproc", "77"}
}

// reported starts the command and gives what it sees. It runs until the test ends.
func reported(t *testing.T, child *exec.Cmd) findings {
	t.Helper()
	_, output := hosttest.Start(t, child)
	line, _ := output.ReadBytes('\n')
	var said findings
	if err := json.Unmarshal(line, &said); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return said
}

// mountsOf gives the mount points of a process with the options of each, but for the source.
func mountsOf(t *testing.T, pid int) map[string]string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		t.Fatal(err)
	}
	mounts := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		fields := strings.Fields(line)
		mounts[fields[4]] = strings.Join(fields[5:7], " ")
	}
	return mounts
}

func expect(t *testing.T, what string, found, wanted any) {
	t.Helper()
	if !reflect.DeepEqual(found, wanted) {
		t.Errorf("%s: %v, not %v", what, found, wanted)
	}
}

func TestTheCommandSeesItsFoldersAndNothingElseOfTheHost(t *testing.T) {
	needsRoot(t)
	folder, procs := t.TempDir(), filepath.Join(t.TempDir(), "cgroup.procs")
	for name, content := range map[string]string{procs: "", filepath.Join(folder, "program"): "#!/vmm/run\n"} {
		if err := os.WriteFile(name, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mknod(filepath.Join(folder, "device"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	inherited, err := os.CreateTemp(t.TempDir(), "inherited")
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	_, _ = inherited.WriteString("memory")
	// A file that a VMM has left there is replaced.
	socket := filepath.Join(t.TempDir(), "socket")
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	where := []string{"--program", program(t), "--folder", folder, "--cgroup", procs, "--tap", "tap7=9", "--listen", socket + "=8"}
	child := jailed(append(append(where, atLeast("new")...), "--", "/vmm/run", "report")...)
	child.ExtraFiles = []*os.File{inherited}
	said := reported(t, child)
	pid := child.Process.Pid

	sort.Strings(said.Files)
	expect(t, "files", said.Files, []string{"/", "/dev", "/dev/fd", "/vm", "/vm/device", "/vm/program", "/vmm", "/vmm/run"})
	expect(t, "mounts", mountsOf(t, pid), map[string]string{
		"/":       "ro,nosuid,nodev,noexec,relatime -",
		"/vmm":    "ro,nosuid,nodev,relatime -",
		"/vm":     "rw,nosuid,nodev,noexec,relatime -",
		"/dev/fd": "ro,nosuid,nodev,noexec,relatime -",
	})
	for name, result := range map[string]string{
		"write to its program": said.ProgramWrite, "new folder": said.RootWrite, "program of its folder": said.FolderExec,
		"device of its folder": said.Device,
	} {
		if result == "<nil>" {
			t.Errorf("%s: it could", name)
		}
	}
	expect(t, "write to its folder", said.FolderWrite, "<nil>")
	expect(t, "inherited file", said.Inherited, "memory<nil>")
	expect(t, "capabilities", said.Capabilities, []int{unix.CAP_DAC_OVERRIDE, unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SYS_CHROOT})
	expect(t, "no new privileges", said.NoNewPrivs, 1)
	expect(t, "limits", said.Limits, map[int]uint64{
		unix.RLIMIT_CORE: 0, unix.RLIMIT_NOFILE: 99, unix.RLIMIT_FSIZE: 3072, unix.RLIMIT_NPROC: 77, unix.RLIMIT_MEMLOCK: 0,
	})
	for _, name := range []string{"net", "ipc", "mnt"} {
		own, _ := os.Readlink("/proc/self/ns/" + name)
		if its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, name)); err != nil || its == own {
			t.Errorf("it shares its %s namespace with the host (%v)", name, err)
		}
	}
	joined, _ := os.ReadFile(procs)
	expect(t, "process in the cgroup", string(joined), fmt.Sprint(pid))
	expect(t, "name of its socket", said.AddressOfFirst, socket)
	client, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(client)
	if err := unix.Connect(client, &unix.SockaddrUnix{Name: socket}); err != nil {
		t.Errorf("its socket cannot be connected to: %v", err)
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, one := range open {
		target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, one.Name()))
		if strings.HasPrefix(target, "/") && target != "/dev/null" {
			files[one.Name()] = target
		}
	}
	// The mount that it was opened through is no longer anywhere, so its name begins there.
	expect(t, "open files", files, map[string]string{"3": inherited.Name(), "9": "/net/tun"})
}

func TestAConfinedCommandReadsItsFilesAndReachesNoOtherProcess(t *testing.T) {
	needsRoot(t)
	note := filepath.Join(t.TempDir(), "note")
	if err := os.WriteFile(note, []byte("read"), 0o600); err != nil {
		t.Fatal(err)
	}
	for netns, inet := range map[string]string{"new": "operation not permitted", "host": "<nil>"} {
		args := append([]string{"--folder", t.TempDir(), "--read", note + "=/etc/deep/note", "--execute", filepath.Join(program(t), "run") + "=/bin/run"},
			append(atLeast(netns), "--confine", "--", "/bin/run", "report")...)
		child := jailed(args...)
		said := reported(t, child)
		sort.Strings(said.Files)
		expect(t, "files", said.Files,
			[]string{"/", "/bin", "/bin/run", "/dev", "/dev/fd", "/etc", "/etc/deep", "/etc/deep/note", "/vm"})
		mounts := mountsOf(t, child.Process.Pid)
		expect(t, "what it reads", mounts["/etc/deep/note"], "ro,nosuid,nodev,noexec,relatime -")
		expect(t, "what it executes", mounts["/bin/run"], "ro,nosuid,nodev,relatime -")
		expect(t, "signal to another process", said.Signal, "operation not permitted")
		expect(t, "signal to itself", said.Thread, "<nil>")
		refused := "operation not permitted"
		expect(t, "sockets", said.Sockets, map[int]string{unix.AF_INET: inet, unix.AF_UNIX: refused, unix.AF_VSOCK: refused})
		its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", child.Process.Pid))
		own, _ := os.Readlink("/proc/self/ns/net")
		if err != nil || (its == own) != (netns == "host") {
			t.Errorf("its network namespace is %s, and that of the host %s (%v)", its, own, err)
		}
	}
}

func TestItStartsInAChrootToo(t *testing.T) {
	needsRoot(t)
	root := program(t)
	for _, name := range []string{"proc", "tmp", "program", "folder"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(root, "run"), filepath.Join(root, "program/run")); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"--program", "/program", "--folder", "/folder"}, atLeast("new")...)
	child := exec.Command("unshare", "--mount", "sh", "-c", `mount -t proc proc "$0/proc" && exec chroot "$0" /run`, root)
	child.Env = append(os.Environ(), "JAIL_TEST_ARGS="+strings.Join(append(args, "--", "/vmm/run", "report"), separator))
	child.Stderr = os.Stderr
	reported(t, child)
	expect(t, "mounts", len(mountsOf(t, child.Process.Pid)), 4)
}

func TestTheCommandHasKvmWhereItIsAskedFor(t *testing.T) {
	needsRoot(t)
	if _, err := os.Stat("/dev/kvm"); err != nil {
		t.Skip("there is no /dev/kvm")
	}
	args := append([]string{"--kvm", "--program", program(t), "--folder", t.TempDir()}, atLeast("new")...)
	child := jailed(append(args, "--", "/vmm/run", "report")...)
	reported(t, child)
	expect(t, "mount", mountsOf(t, child.Process.Pid)["/dev/kvm"], "rw,nosuid,noexec,relatime -")
	its, err := os.Stat(fmt.Sprintf("/proc/%d/root/dev/kvm", child.Process.Pid))
	if err != nil || its.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("it is no device: %v", err)
	}
}

func TestWhatCannotBeIsAnErrorBeforeTheCommandRuns(t *testing.T) {
	folders := []string{"--program", program(t), "--folder", t.TempDir()}
	good := append(append([]string{}, folders...), atLeast("new")...)
	with := func(more ...string) []string { return append(append([]string{}, good...), more...) }
	for _, args := range [][]string{
		good,
		append(append([]string{}, folders...), "--netns", "new", "--nofile", "9", "--", "/vmm/run"),
		append(append([]string{}, folders...), append(atLeast(""), "--", "/vmm/run")...),
		append(append([]string{}, folders...), append(atLeast("/nonexistent"), "--", "/vmm/run")...),
		with("--folder", "/proc/self/missing", "--", "/vmm/run"),
		with("--read", "/proc/self/missing=/file", "--", "/vmm/run"),
		with("--read", "/proc/self/status=relative", "--", "/vmm/run"),
		with("--execute", "/proc/self/status=/", "--", "/vmm/run"),
		with("--program", "/proc/self/missing", "--", "/vmm/run"),
		with("--", "/vmm/no-such-program"),
		with("--", "/bin/sh"),
		with("--cgroup", "/proc/self/missing", "--", "/vmm/run"),
		with("--listen", "/proc/self/missing/socket=8", "--", "/vmm/run"),
		with("--listen", "socket", "--", "/vmm/run"),
		with("--listen", "socket=2", "--", "/vmm/run"),
		with("--tap", "tap0=64", "--", "/vmm/run"),
		with("--tap", "a-name-that-is-too-long=8", "--", "/vmm/run"),
		{"--nofile", "-1", "--", "/vmm/run"},
	} {
		child := jailed(args...)
		child.Stderr = nil
		if output, err := child.CombinedOutput(); err == nil || len(output) == 0 {
			t.Errorf("%v: %q, %v", args, output, err)
		}
	}
}
