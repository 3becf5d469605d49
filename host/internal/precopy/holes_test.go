package precopy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"releap/host/internal/hosttest"
)

// The pages that a test's memory file has. The hole between the last two is not worth a mapping of its own.
var dataPages = []int{0, 19, 20, 40, 42}

const smallHoles = 1

// sparseMemory is a memfd, as the memory of a template is.
func sparseMemory(t *testing.T) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "memfd")
	t.Cleanup(func() { file.Close() })
	if err := file.Truncate(targetBytes); err != nil {
		t.Fatal(err)
	}
	for _, page := range dataPages {
		if _, err := file.WriteAt(bytes.Repeat([]byte{byte(page + 100)}, int(pageBytes)), int64(page)*int64(pageBytes)); err != nil {
			t.Fatal(err)
		}
	}
	return file
}

func allocatedPages(t *testing.T, file *os.File) int {
	t.Helper()
	var info unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &info); err != nil {
		t.Fatal(err)
	}
	return int(info.Blocks * 512 / int64(pageBytes))
}

func replaceHoles(t *testing.T, pid int, address uintptr) {
	t.Helper()
	args := []string{fmt.Sprint(pid), fmt.Sprint(uint64(address)), fmt.Sprint(targetBytes), fmt.Sprintf("/proc/%d/fd/%d", pid, memoryFd)}
	said, err := testProgram("holes", args...).CombinedOutput()
	if expected := fmt.Sprintln(smallHoles * pageBytes); err != nil || string(said) != expected {
		t.Fatalf("%q instead of %q (%v)", said, expected, err)
	}
}

func contentOf(t *testing.T, pid int, address uintptr) []byte {
	t.Helper()
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	content := make([]byte, targetBytes)
	if _, err := memory.ReadAt(content, int64(address)); err != nil {
		t.Fatal(err)
	}
	return content
}

func TestMemoryThatIsWrittenIsAllocatedOnce(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		file := sparseMemory(t)
		pid, address, say := startTarget(t, file)
		allocated := targetBytes / int(pageBytes)
		if replaced {
			replaceHoles(t, pid, address)
			allocated = len(dataPages) + smallHoles
		}
		expected := make([]byte, targetBytes)
		if _, err := file.ReadAt(expected, 0); err != nil {
			t.Fatal(err)
		}
		copy(expected, "first")
		if !bytes.Equal(contentOf(t, pid, address), expected) {
			t.Errorf("replaced %v: the process has another content", replaced)
		}
		say("fill")
		for at := range expected {
			expected[at] += byte(at>>12) + 1
		}
		copy(expected, "fill\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
		if !bytes.Equal(contentOf(t, pid, address), expected) {
			t.Errorf("replaced %v: the process does not have what it has written", replaced)
		}
		if found := allocatedPages(t, file); found != allocated {
			t.Errorf("replaced %v: the file has %d pages instead of %d", replaced, found, allocated)
		}
	}
}

func TestCopiesOfMemoryWithoutHolesHaveThem(t *testing.T) {
	file := sparseMemory(t)
	pid, address, say := startTarget(t, file)
	replaceHoles(t, pid, address)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, how := range []string{tracked, untracked} {
		target := sparseMemory(t)
		path := fmt.Sprintf("/proc/self/fd/%d", target.Fd())
		copier, err := newPreCopier(pid, address, targetBytes, path)
		if err != nil {
			t.Fatal(err)
		}
		if how == tracked {
			if err := copier.track(); errors.Is(err, errUnsupported) {
				continue
			} else if err != nil {
				t.Fatal(err)
			}
		}
		follow := func(order string) {
			t.Helper()
			if _, err := copier.follow(how, order); err != nil {
				t.Error(err)
			}
		}
		// What it has read, or filled with zeros, is a hole of the copy.
		say("zero")
		say("read")
		follow("all")
		follow("last")
		if found := allocatedPages(t, target); found > len(dataPages)+smallHoles {
			t.Errorf("%s: %d pages", how, found)
		}
		equal := func(what string) {
			t.Helper()
			copied := make([]byte, targetBytes)
			if _, err := target.ReadAt(copied, 0); err != nil || !bytes.Equal(copied, contentOf(t, pid, address)) {
				t.Errorf("%s, %s: the copy is another (%v)", how, what, err)
			}
		}
		equal("zeros")
		say("fill")
		follow("last")
		equal("content")
		say("zero")
		follow("last")
		equal("zeros again")
		copier.pagemap.Close()
		copier.target.Close()
	}
}

func TestCopiesToTheMemoryOfAnotherProcess(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, how := range []string{untracked, tracked} {
		file := sparseMemory(t)
		pid, address, say := startTarget(t, file)
		child, there, read := startTarget(t, file)
		replaceHoles(t, pid, address)
		replaceHoles(t, child, there)
		copier := openCopier(t, pid, address, fmt.Sprintf("%d:%d", child, there))
		if how == tracked {
			trackOrSkip(t, copier)
		}
		for _, content := range []string{"one", "zero", "read", "fill", "zero", "two"} {
			say(content)
			for _, order := range []string{"all", "rest", "last"} {
				if _, err := copier.follow(how, order); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(contentOf(t, child, there), contentOf(t, pid, address)) {
				t.Errorf("%s, %s: the copy is another", how, content)
			}
		}
		if found := read("end"); found != "two" {
			t.Errorf("%s: the other process reads %q", how, found)
		}
		if found := allocatedPages(t, file); found > len(dataPages)+smallHoles {
			t.Errorf("%s: the file that both map has %d pages", how, found)
		}
	}
}

func TestChoosesTheLargestHoles(t *testing.T) {
	size := 16 * pageBytes
	holesOfTwoSizes := func(count uintptr) (holes []region) {
		for index := uintptr(0); index < count; index++ {
			start := index * 64 * pageBytes
			holes = append(holes, region{start: start, end: start + size + index%2*pageBytes})
		}
		return holes
	}
	for _, one := range []struct{ count, chosen, rest uintptr }{
		{2 * holesMax, holesMax, holesMax * size},
		{2 * restBytes / size, restBytes / size, restBytes},
		{restBytes / 2 / size, 0, restBytes/2 + restBytes/4/size*pageBytes},
	} {
		chosen, rest := largestHoles(holesOfTwoSizes(one.count))
		if uintptr(len(chosen)) != one.chosen || rest != one.rest {
			t.Fatalf("%+v: %d holes, %d bytes are left", one, len(chosen), rest)
		}
		for index, hole := range chosen {
			if hole.end-hole.start != size+pageBytes || index > 0 && chosen[index-1].start >= hole.start {
				t.Fatalf("%+v: %d: %+v", one, index, hole)
			}
		}
	}
}

func TestHolesThatCannotBeReplacedAreAnError(t *testing.T) {
	hosttest.NeedsRoot(t, "processes of others are traced")
	file := filepath.Join(t.TempDir(), "memory")
	if err := os.WriteFile(file, make([]byte, pageBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{}, {"x", "0", "4096", file}, {"4194304", "4096", "4096", file}, {"1", "4096", "8192", file}, {"1", "4096", "4096", file + ".missing"},
	} {
		if err := Holes(args); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
