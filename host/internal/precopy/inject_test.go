package precopy

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"releap/host/internal/hosttest"
)

// The tests start their own program again as the process whose memory is copied.
func TestMain(m *testing.M) {
	switch os.Getenv("PRECOPY_TEST") {
	case "target":
		target()
	case "blocked":
		blocked()
	case "hostd":
		stopLimit = 100 * time.Millisecond
		endWith(Precopy(os.Args[1:]))
	case "holes":
		restBytes = smallHoles * pageBytes
		endWith(Holes(os.Args[1:]))
	default:
		if os.Getpid() == 1 {
			runAsInit(m)
		}
		os.Exit(m.Run())
	}
}

func endWith(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// runAsInit runs the tests as the only process of a machine, to try them on its kernel, and powers it off.
func runAsInit(m *testing.M) {
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		fmt.Println(err)
	}
	fmt.Println("ended with", m.Run())
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// The main goroutine runs on the main thread.
func init() { runtime.LockOSThread() }

// testProgram is this very program as another process.
func testProgram(role string, args ...string) *exec.Cmd {
	child := exec.Command("/proc/self/exe", args...)
	child.Env = append(os.Environ(), "PRECOPY_TEST="+role, "GODEBUG=asyncpreemptoff=1")
	return child
}

const targetBytes = 64 * 4096

// memoryFd is the file that a target maps privately, if it gets one.
const memoryFd = 3

// mapMemory maps memory, writes content to its beginning, and then prints its address.
func mapMemory(content string) []byte {
	fd, flags := memoryFd, unix.MAP_PRIVATE
	if os.Getenv("PRECOPY_TEST_FILE") == "" {
		fd, flags = -1, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS
	}
	memory, err := unix.Mmap(fd, 0, targetBytes, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		panic(err)
	}
	copy(memory, content)
	fmt.Println(uintptr(unsafe.Pointer(&memory[0])))
	return memory
}

// target answers each line with what its memory begins with before it writes that line there. For "fill" it writes to all of it, for
// "zero" zeros, and for "read" it reads all of it.
func target() {
	memory := mapMemory("first")
	sum := 0
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		before := strings.TrimRight(string(memory[:16]), "\x00")
		if lines.Text() == "fill" {
			for at := range memory {
				memory[at] += byte(at>>12) + 1
			}
		}
		for at := 0; at < len(memory) && lines.Text() == "zero"; at++ {
			memory[at] = 0
		}
		for at := 0; at < len(memory) && lines.Text() == "read"; at++ {
			sum += int(memory[at])
		}
		copy(memory, lines.Text()+strings.Repeat("\x00", 16))
		fmt.Println(before)
	}
}

// blocked waits inside the kernel, where it cannot be stopped, until its child ends, and then prints a line.
func blocked() {
	mapMemory("")
	child, _, errno := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_VFORK|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		panic(errno)
	}
	for child == 0 {
		pause := unix.Timespec{Sec: 1}
		_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&pause)), 0, 0)
	}
	fmt.Println("continued")
}

// startTarget gives the process, where its memory lies, and what tells it a line. It may map a file.
func startTarget(t *testing.T, mapped ...*os.File) (int, uintptr, func(string) string) {
	t.Helper()
	hosttest.NeedsRoot(t, "the seccomp filter of a tracee is suspended with CAP_SYS_ADMIN")
	child := testProgram("target")
	if child.ExtraFiles = mapped; len(mapped) > 0 {
		child.Env = append(child.Env, "PRECOPY_TEST_FILE=1")
	}
	input, lines := hosttest.Start(t, child)
	var address uintptr
	if _, err := fmt.Fscanln(lines, &address); err != nil {
		t.Fatal(err)
	}
	say := func(text string) string {
		fmt.Fprintln(input, text)
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(line)
	}
	return child.Process.Pid, address, say
}

func TestAProcessThatDoesNotStopContinues(t *testing.T) {
	hosttest.NeedsRoot(t, "processes of others are traced")
	child := testProgram("blocked")
	_, lines := hosttest.Start(t, child)
	var address uintptr
	if _, err := fmt.Fscanln(lines, &address); err != nil {
		t.Fatal(err)
	}
	pid := child.Process.Pid
	var forked int
	for forked == 0 {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Sscan(string(children), &forked)
	}
	defer func() { _ = unix.Kill(forked, unix.SIGKILL) }()
	hostd := testProgram("hostd", fmt.Sprint(pid), fmt.Sprint(uint64(address)), fmt.Sprint(targetBytes), "/dev/null")
	said, err := hostd.CombinedOutput()
	if err == nil && string(said) != tracked+"\n" {
		t.Skip("without tracking no process is stopped")
	}
	if err == nil || !strings.Contains(string(said), "blocked inside the kernel") {
		t.Fatalf("%q, %v", said, err)
	}
	if err := unix.Kill(forked, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if line, err := lines.ReadString('\n'); err != nil || line != "continued\n" {
		t.Errorf("%q, %v", line, err)
	}
}
