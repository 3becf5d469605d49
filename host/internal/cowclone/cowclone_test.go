package cowclone

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The tests start their own program again as the process that is cloned.
func TestMain(m *testing.M) {
	if os.Getenv("COWCLONE_TEST_TARGET") != "" {
		target()
		return
	}
	os.Exit(m.Run())
}

const targetBytes = 64 * 4096

// target maps memory as QEMU does, prints its address, and answers each line with what the memory begins with before it
// writes that line there.
func target() {
	memory, err := unix.Mmap(-1, 0, targetBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		panic(err)
	}
	if err := unix.Madvise(memory, unix.MADV_DONTFORK); err != nil {
		panic(err)
	}
	copy(memory, "first")
	fmt.Println(uintptr(unsafe.Pointer(&memory[0])))
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		before := strings.TrimRight(string(memory[:16]), "\x00")
		copy(memory, lines.Text()+strings.Repeat("\x00", 16))
		fmt.Println(before)
	}
}

// startTarget gives the process, where its memory lies, and what tells it a line.
func startTarget(t *testing.T) (int, uintptr, func(string) string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: the seccomp filter of a tracee is suspended with CAP_SYS_ADMIN")
	}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "COWCLONE_TEST_TARGET=1", "GODEBUG=asyncpreemptoff=1")
	input, _ := child.StdinPipe()
	output, _ := child.StdoutPipe()
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close()
		_ = child.Wait()
	})
	lines := bufio.NewReader(output)
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

func TestAClonesMemoryStaysWhileTheProcessContinues(t *testing.T) {
	pid, address, say := startTarget(t)

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	vmm := &process{pid: pid}
	if err := vmm.prepare(address, targetBytes); err != nil {
		t.Fatal(err)
	}
	var clones []int
	defer func() { reap(clones) }()
	for round, content := range []string{"first", "second"} {
		clone, err := vmm.clone()
		if err != nil {
			t.Fatal(err)
		}
		clones = append(clones, clone)
		if before := say([]string{"second", "third"}[round]); before != content {
			t.Errorf("the process had %q, not %q", before, content)
		}
	}
	for index, content := range []string{"first", "second"} {
		memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", clones[index]))
		if err != nil {
			t.Fatal(err)
		}
		defer memory.Close()
		found := make([]byte, len(content)+1)
		if _, err := memory.ReadAt(found, int64(address)); err != nil || !bytes.Equal(found, append([]byte(content), 0)) {
			t.Errorf("clone %d has %q, not %q (%v)", index, found, content, err)
		}
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", clones[index]))
		if !bytes.Contains(status, []byte("State:\tt (tracing stop)")) {
			t.Errorf("clone %d is not stopped:\n%.300s", index, status)
		}
	}
	if after := say("fourth"); after != "third" {
		t.Errorf("the process has %q", after)
	}
}

func TestAProcessThatDoesNotExistIsAnError(t *testing.T) {
	for _, args := range [][]string{{}, {"1"}, {"x", "0", "0"}, {"-1", "0", "0"}, {"4194304", "4096", "4096"}} {
		if err := Serve(args); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
