package memory

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// sparse writes a file of holes, zeros and data.
func sparse(t *testing.T) (string, []byte) {
	t.Helper()
	content := make([]byte, 3*chunkBytes+5000)
	for _, part := range []int{0, 2*pageBytes + 7, chunkBytes - 3, 3*chunkBytes + 4990} {
		copy(content[part:], "data that is not zero")
	}
	path := filepath.Join(t.TempDir(), "source")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(int64(len(content))); err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(content); at += pageBytes {
		page := content[at:min(at+pageBytes, len(content))]
		// Every fourth page that is zero is written as such.
		if !bytes.Equal(page, make([]byte, len(page))) || at/pageBytes%4 == 0 {
			if _, err := file.WriteAt(page, int64(at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return path, content
}

func blocks(t *testing.T, path string) int64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Blocks
}

func TestCopyAndCompactKeepTheContent(t *testing.T) {
	source, content := sparse(t)
	for name, command := range map[string]func([]string) error{"copy": Copy, "compact": Compact} {
		target := filepath.Join(t.TempDir(), name)
		if err := command([]string{source, target}); err != nil {
			t.Fatal(err)
		}
		if found, _ := os.ReadFile(target); !bytes.Equal(found, content) {
			t.Errorf("%s changed the content", name)
		}
		if blocks(t, target) > blocks(t, source) {
			t.Errorf("%s takes %d blocks, the source %d", name, blocks(t, target), blocks(t, source))
		}
	}
}

func TestCompactLeavesOutPagesThatAreZero(t *testing.T) {
	source, _ := sparse(t)
	target := filepath.Join(t.TempDir(), "compact")
	if err := Compact([]string{source, target}); err != nil {
		t.Fatal(err)
	}
	if blocks(t, target) >= blocks(t, source) {
		t.Errorf("%d blocks of %d are left", blocks(t, target), blocks(t, source))
	}
}

func TestFillWritesOnlyWhereThereIsNothing(t *testing.T) {
	source, content := sparse(t)
	target, err := os.Create(filepath.Join(t.TempDir(), "target"))
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	if err := target.Truncate(int64(len(content))); err != nil {
		t.Fatal(err)
	}
	mine := bytes.Repeat([]byte("m"), pageBytes)
	if _, err := target.WriteAt(mine, 0); err != nil {
		t.Fatal(err)
	}
	if err := Fill(target, source); err != nil {
		t.Fatal(err)
	}
	found, _ := os.ReadFile(target.Name())
	if !bytes.Equal(found[:pageBytes], mine) || !bytes.Equal(found[pageBytes:], content[pageBytes:]) {
		t.Error("the memory is not its own first page and the source's others")
	}
}

func TestWrongArgumentsAreErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, args := range [][]string{{}, {"a"}, {missing, missing + ".target"}} {
		if Copy(args) == nil || Compact(args) == nil {
			t.Errorf("%v: no error", args)
		}
	}
	for _, args := range [][]string{{}, {"0"}, {"-4096"}, {"4097"}, {"x"}} {
		if Serve(args) == nil {
			t.Errorf("memfd %v: no error", args)
		}
	}
}
