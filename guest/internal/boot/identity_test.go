package boot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRenameHostReplacesWholeWordsOfRulesOnly(t *testing.T) {
	const text = "127.0.0.1\tlocalhost box\n10.0.0.1  box.lan box\tbox-2 # box\n# 1.2.3.4 box\nbox box\n\n172.16.0.2\tbox"
	const want = "127.0.0.1\tlocalhost new\n10.0.0.1  box.lan new\tbox-2 # box\n# 1.2.3.4 box\nbox new\n\n172.16.0.2\tnew"
	if got := renameHost(text, "box", "new"); got != want {
		t.Fatalf("got %q", got)
	}
	if got := renameHost(want, "box", "new"); got != want {
		t.Fatalf("got %q", got)
	}
}

func TestWriteHosts(t *testing.T) {
	const local = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	id := &Identity{Hostname: "new"}
	for name, c := range map[string]struct{ have, previous, want string }{
		"none":                {"", "", local + "172.16.0.2\tnew\n"},
		"of an image":         {"1.1.1.1 other\n", "", local + "172.16.0.2\tnew\n"},
		"used before":         {"172.16.0.2 new\n1.1.1.1 other\n", "", "172.16.0.2 new\n1.1.1.1 other\n"},
		"of a fork's parent":  {"1.1.1.1 other\n172.16.0.2\told\n", "old", "1.1.1.1 other\n172.16.0.2\tnew\n"},
		"at another address":  {"127.0.1.1\told", "old", "127.0.1.1\tnew\n172.16.0.2\tnew\n"},
		"without the old one": {"1.1.1.1 other\n", "old", "1.1.1.1 other\n172.16.0.2\tnew\n"},
		"gone":                {"", "old", local + "172.16.0.2\tnew\n"},
		"of the same name":    {"172.16.0.2\tnew\n", "new", "172.16.0.2\tnew\n"},
	} {
		path := filepath.Join(t.TempDir(), "hosts")
		if c.have != "" {
			if err := os.WriteFile(path, []byte(c.have), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := id.writeHosts(path, "172.16.0.2", c.previous); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(path); string(got) != c.want {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

func TestARootIsCopiedIfItHasTheMachineIdOfAnotherSandbox(t *testing.T) {
	own, other := strings.Repeat("a", 32), strings.Repeat("b", 32)
	for text, copied := range map[string]bool{own + "\n": false, other + "\n": true, other: true, "": false, "uninitialized\n": false} {
		path := filepath.Join(t.TempDir(), "machine-id")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		id := &Identity{MachineID: own}
		if id.isCopied(path) != copied {
			t.Errorf("%q: %v", text, !copied)
		}
	}
	if id := (&Identity{MachineID: own}); id.isCopied(filepath.Join(t.TempDir(), "none")) {
		t.Error("a root without a machine id")
	}
}
