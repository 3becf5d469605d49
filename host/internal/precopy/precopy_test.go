package precopy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func emptyFile(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "target")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func openCopier(t *testing.T, pid int, address uintptr, path string) *preCopier {
	copier, err := newPreCopier(pid, address, targetBytes, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		copier.pagemap.Close()
		copier.target.Close()
	})
	return copier
}

func trackOrSkip(t *testing.T, copier *preCopier) {
	if err := copier.track(); errors.Is(err, errUnsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
}

func TestCopiesWhatIsWrittenWhileTheProcessRuns(t *testing.T) {
	pid, address, say := startTarget(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	path := emptyFile(t)
	// The second one finds that the process is tracked already.
	for round := 0; round < 2; round++ {
		copier := openCopier(t, pid, address, path)
		trackOrSkip(t, copier)
		copied := func(what string, expected int64, work func() (int64, error), content string) {
			t.Helper()
			bytes, err := work()
			if err != nil || bytes != expected {
				t.Errorf("%s: %d bytes instead of %d (%v)", what, bytes, expected, err)
			}
			found, _ := os.ReadFile(path)
			if !strings.HasPrefix(string(found), content+"\x00") {
				t.Errorf("%s: %.10q instead of %q", what, found, content)
			}
		}
		say("one")
		copied("all", int64(pageBytes), copier.copyAll, "one")
		copied("nothing", 0, copier.copyRest, "one")
		say("two")
		say("three")
		copied("what was written, counted", int64(pageBytes), copier.countRest, "one")
		copied("what was written", int64(pageBytes), copier.copyRest, "three")
		copied("nothing again", 0, copier.copyRest, "three")
	}
	if after := say("end"); after != "three" {
		t.Errorf("the process has %q", after)
	}
}

func TestCopiesAllOfAStoppedProcessThatIsNotTracked(t *testing.T) {
	pid, address, say := startTarget(t)
	path := emptyFile(t)
	copier := openCopier(t, pid, address, path)
	say("one")
	for _, order := range []string{"all", "rest", "count"} {
		if copied, err := copier.follow(untracked, order); copied != 0 || err != nil {
			t.Errorf("%s: %d bytes (%v)", order, copied, err)
		}
	}
	for content, expected := range map[string]int64{"two": int64(pageBytes), "fill": targetBytes} {
		say(content)
		if copied, err := copier.follow(untracked, "last"); copied < expected || err != nil {
			t.Errorf("%d bytes instead of %d (%v)", copied, expected, err)
		}
		if found, _ := os.ReadFile(path); !strings.HasPrefix(string(found), content+"\x00") {
			t.Errorf("%.10q instead of %q", found, content)
		}
	}
}

func TestCopiesMarkedPagesOfAStoppedProcess(t *testing.T) {
	if !canMark() {
		t.Skip("the kernel does not mark written pages")
	}
	pid, address, say := startTarget(t)
	path := emptyFile(t)
	copier := openCopier(t, pid, address, path)
	say("fill")
	for _, step := range []struct {
		order, content string
		copied         int64
	}{{"all", "fill", targetBytes}, {"last", "fill", 0}, {"rest", "two", 0}, {"last", "two", int64(pageBytes)}, {"last", "two", int64(pageBytes)}} {
		if step.order == "rest" {
			say("two")
		}
		if copied, err := copier.follow(marked, step.order); copied != step.copied || err != nil {
			t.Errorf("%s: %d bytes instead of %d (%v)", step.order, copied, step.copied, err)
		}
		if found, _ := os.ReadFile(path); step.order != "rest" && !strings.HasPrefix(string(found), step.content+"\x00") {
			t.Errorf("%s: %.10q instead of %q", step.order, found, step.content)
		}
	}
}

func TestCopiesLargeMemoryInWindows(t *testing.T) {
	pid, address, say := startTarget(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	usual := windowBytes
	windowBytes = 3 * pageBytes
	defer func() { windowBytes = usual }()
	path := emptyFile(t)
	say("fill")
	copier := openCopier(t, pid, address, path)
	trackOrSkip(t, copier)
	for _, work := range []func() (int64, error){copier.copyAll, copier.copyRest} {
		if copied, err := work(); err != nil || copied != targetBytes {
			t.Fatalf("%d bytes of %d (%v)", copied, targetBytes, err)
		}
		memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
		if err != nil {
			t.Fatal(err)
		}
		expected := make([]byte, targetBytes)
		_, err = memory.ReadAt(expected, int64(address))
		memory.Close()
		if found, _ := os.ReadFile(path); err != nil || !bytes.Equal(found, expected) {
			t.Errorf("the copy is another (%v)", err)
		}
		say("fill")
	}
}

func TestAMemoryThatCannotBePrecopiedIsAnError(t *testing.T) {
	target := emptyFile(t)
	for _, args := range [][]string{
		{}, {"1", "0", "0"}, {"x", "0", "4096", target}, {"4194304", "4096", "4096", target},
		{"1", "0", "0", target}, {"1", "4096", "4096", target, "both"}, {"1", "7", "4096", target}, {"1", "4096", "4096", target + ".missing"},
		{"1", "4096", "4096", "relative"}, {"1", "4096", "4096", "1:x"}, {"1", "4096", "4096", "4194304:4096"},
	} {
		if err := Precopy(args); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
