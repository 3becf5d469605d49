package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"releap/guest/internal/process"
)

// swap calls once before its first byte is read.
type swap struct {
	from io.Reader
	once func()
}

func (s *swap) Read(p []byte) (int, error) {
	if s.once != nil {
		s.once()
		s.once = nil
	}
	return s.from.Read(p)
}

func TestAFolderThatIsReplacedByALinkRedirectsNoWrite(t *testing.T) {
	root := t.TempDir()
	_ = os.MkdirAll(root+"/mine", 0o755)
	_ = os.MkdirAll(root+"/secret", 0o755)
	_ = os.WriteFile(root+"/secret/file", []byte("kept"), 0o600)
	content := &swap{strings.NewReader("attack"), func() {
		_ = os.Rename(root+"/mine", root+"/moved")
		_ = os.Symlink(root+"/secret", root+"/mine")
	}}
	if err := writeFile(root+"/mine/file", process.User{}, content); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(root + "/secret/file"); string(got) != "kept" {
		t.Fatalf("%q", got)
	}
	if got, _ := os.ReadFile(root + "/moved/file"); string(got) != "attack" {
		t.Fatalf("%q", got)
	}
}

func TestLinksAreWrittenThroughAndDanglingOnesAreReplaced(t *testing.T) {
	root := t.TempDir()
	_ = os.WriteFile(root+"/target", []byte("old"), 0o640)
	_ = os.Symlink(root+"/target", root+"/link")
	_ = os.Symlink(root+"/nowhere/x", root+"/dangling")
	_ = os.Symlink("loop", root+"/loop")
	for _, name := range []string{"link", "dangling", "loop"} {
		if err := writeFile(root+"/"+name, process.User{}, strings.NewReader(name)); err != nil {
			t.Fatal(name, err)
		}
	}
	info, _ := os.Lstat(root + "/link")
	if got, _ := os.ReadFile(root + "/target"); string(got) != "link" || info.Mode()&os.ModeSymlink == 0 {
		t.Fatalf("%q %v", got, info.Mode())
	}
	if info, _ := os.Lstat(root + "/dangling"); !info.Mode().IsRegular() {
		t.Fatal(info.Mode())
	}
	if left, _ := os.ReadDir(root); len(left) != 4 {
		t.Fatal(left)
	}
}

func TestTenThousandFilesInAFolder(t *testing.T) {
	root := t.TempDir()
	for i := 0; i < 10_000; i++ {
		if err := writeFile(fmt.Sprintf("%s/new/%d", root, i), process.User{}, strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
	}
	b := startBox(t)
	if found := b.want(200, "GET", "files/search?path="+root+"&pattern=*7", nil)["files"].([]interface{}); len(found) != 1000 {
		t.Fatal(len(found))
	}
}
