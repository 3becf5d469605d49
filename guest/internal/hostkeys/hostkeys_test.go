package hostkeys

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"releap/guest/internal/process"
)

// A program in the place of ssh-keygen, which the table's reaper waits for. The real one is tried by the test of guests' identity.
const fake = `#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in
    -t) kind=$2; shift ;;
    -f) file=$2; shift ;;
  esac
  shift
done
[ "$kind" != ecdsa ] || exit 1
echo "$kind $(cat /proc/sys/kernel/random/uuid)" > "$file"
echo "public $kind" > "$file.pub"
`

func TestEachKeyThatTheServerHasIsReplacedAndNoOtherIsMade(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var logged []string
	log := func(line string) { logged = append(logged, line) }
	keys := New(process.NewTable(nil, log), log)
	keys.folder, keys.pidFile, keys.program = dir, filepath.Join(dir, "none"), write("ssh-keygen", fake, 0o755)
	keys.renew()
	if names, _ := filepath.Glob(filepath.Join(dir, "ssh_host_*")); len(names) != 0 {
		t.Fatalf("keys of a server that is not installed: %v", names)
	}
	write("ssh_host_ed25519_key", "of the source", 0o600)
	write("ssh_host_ed25519_key.pub", "of the source", 0o644)
	write("ssh_host_ecdsa_key", "of the source", 0o600)
	seen := map[string]bool{}
	for i := 0; i < 2; i++ {
		keys.renew()
		key := read("ssh_host_ed25519_key")
		if seen[key] || !strings.HasPrefix(key, "ed25519 ") || read("ssh_host_ed25519_key.pub") != "public ed25519\n" {
			t.Errorf("key %d: %q", i, key)
		}
		seen[key] = true
	}
	if read("ssh_host_ecdsa_key") != "of the source" || len(logged) != 2 {
		t.Errorf("a key that cannot be made: %q, %q", read("ssh_host_ecdsa_key"), logged)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "ssh_host_*")); len(names) != 3 {
		t.Errorf("there is more than the keys: %v", names)
	}
}
