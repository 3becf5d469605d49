package main

import (
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"sort"
	"testing"
)

const program = `package main

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"time"
)

type own struct{ http.Server }

func main() {
	_ = errors.Join(os.ErrNotExist, errors.New("x"))
	_, _ = time.Now().Compare(time.Time{}), time.DateOnly
	_ = &exec.Cmd{Path: "/bin/true", WaitDelay: 1}
	one := own{}
	one.DisableGeneralOptionsHandler = one.Addr == ""
	_, _ = os.OpenFile("x", os.O_CREATE|os.O_EXCL, 0)
	_ = bytes.NewReader(nil).Len()
}
`

const test = `package main

import "bytes"

func clone(data []byte) []byte { return bytes.Clone(data) }
`

func TestNamesTheNewerPartsOfTheLibraryThatAModuleUses(t *testing.T) {
	if _, err := os.Stat(filepath.Join(runtime.GOROOT(), "api", "go1.20.txt")); err != nil {
		t.Skip("this version of Go has no list of later ones")
	}
	folder := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module x\n\ngo 1.19\n", "main.go": program, "main_test.go": test} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	newer := additions(19)
	found := map[string]bool{}
	inspect(folder, func(_ token.Position, name string) {
		if newer[name] != 0 {
			found[name] = true
		}
	})
	names := []string{}
	for name := range found {
		names = append(names, name)
	}
	sort.Strings(names)
	want := []string{
		"bytes.Clone", "errors.Join", "net/http.Server.DisableGeneralOptionsHandler", "os/exec.Cmd.WaitDelay", "time.DateOnly",
		"time.Time.Compare",
	}
	if !reflect.DeepEqual(names, want) {
		t.Fatal(names)
	}
}
