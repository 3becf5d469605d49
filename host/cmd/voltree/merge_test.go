package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"releap/host/internal/hosttest"
	"releap/host/internal/volume/displaced"
)

// pair is two hosts with the same tree, the first one's.
func pair(t *testing.T, volume string, fill func(root string)) (first, second *host, store string) {
	t.Helper()
	first, second, store = newHost(t, volume, "first"), newHost(t, volume, "second"), t.TempDir()
	fill(first.data)
	second.checkout(store, first.publish(store))
	return first, second, store
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return "(none)"
	}
	must(t, err)
	return string(data)
}

func (a *answer) kinds() string {
	var lines []string
	for _, conflict := range a.Conflicts {
		lines = append(lines, fmt.Sprintf("%s %s %s", conflict.Kind, conflict.Path, conflict.Kept))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// exchange lets both commit and merge until neither has anything new, and compares the trees but for mtimes of folders.
func exchange(t *testing.T, store string, head *string, hosts ...*host) {
	t.Helper()
	for round := 0; ; round++ {
		before := *head
		for _, host := range hosts {
			host.sync(store, head)
		}
		if before == *head {
			break
		}
		if round == 10 {
			t.Fatal("two hosts commit for ever")
		}
	}
	want := withoutFolderTimes(describe(t, hosts[0].data))
	for _, host := range hosts[1:] {
		assertSame(t, withoutFolderTimes(describe(t, host.data)), want)
	}
}

// sync is what a runner does: it commits against the head, and merges a newer head first.
func (h *host) sync(store string, head *string) (found []displaced.Conflict) {
	h.t.Helper()
	if h.head != *head {
		found = h.merge(store, *head).Conflicts
		h.head = *head
	}
	if root := h.publish(store); root != "same" {
		*head, h.head = root, root
	}
	return found
}

func withoutFolderTimes(description string) string {
	lines := strings.Split(description, "\n")
	for i, line := range lines {
		if mode := strings.Index(line, `" 4`); mode >= 0 && !strings.Contains(line[mode+2:], `"`) {
			fields := strings.Fields(line[mode+2:])
			if len(fields[0]) == 5 {
				lines[i] = line[:mode+2] + fields[0] + " " + fields[1] + strings.Join(fields[3:], " ")
			}
		}
	}
	return strings.Join(lines, "\n")
}

func TestAMergeKeepsBothSides(t *testing.T) {
	onFileSystems(t, func(t *testing.T, volume string) {
		names := []string{
			"mine", "theirs", "both", "equal", "gone-there", "gone-here", "gone-both", "changed-here-gone-there", "gone-here-changed-there",
			"mode-there-content-here", "becomes-folder-there", "becomes-folder-here", "folder/x", "becomes-file-there/x", "becomes-file-both/x",
			"moves-there/a", "moves-there/b", "removed-there/x", "removed-there/kept", "removed-here/x", "linked", "attributes",
		}
		first, second, store := pair(t, volume, func(root string) {
			for _, name := range names {
				must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
				write(t, filepath.Join(root, name), []byte("base "+name))
			}
		})
		here := func(name string) string { return filepath.Join(second.data, name) }
		there := func(name string) string { return filepath.Join(first.data, name) }
		for _, name := range []string{"theirs", "both", "gone-here-changed-there"} {
			write(t, there(name), []byte("theirs "+name))
		}
		for _, name := range []string{"mine", "both", "changed-here-gone-there", "mode-there-content-here"} {
			write(t, here(name), []byte("mine "+name))
		}
		for _, path := range []string{there("equal"), here("equal"), there("added-equal"), here("added-equal")} {
			write(t, path, []byte("equal"))
		}
		write(t, there("added"), []byte("theirs added"))
		write(t, here("added"), []byte("mine added"))
		write(t, here("added-here"), []byte("mine"))
		for _, path := range []string{
			there("gone-there"), here("gone-here"), there("gone-both"), here("gone-both"), there("changed-here-gone-there"), here("gone-here-changed-there"),
		} {
			must(t, os.Remove(path))
		}
		must(t, os.Chmod(there("mode-there-content-here"), 0o4711|os.ModeSetuid))
		must(t, os.Chmod(there("attributes"), 0o600))
		must(t, os.Chmod(here("attributes"), 0o640))
		must(t, os.Remove(there("becomes-folder-there")))
		must(t, os.Mkdir(there("becomes-folder-there"), 0o755))
		write(t, there("becomes-folder-there/x"), []byte("theirs"))
		write(t, here("becomes-folder-there"), []byte("mine"))
		must(t, os.Remove(here("becomes-folder-here")))
		must(t, os.Mkdir(here("becomes-folder-here"), 0o755))
		write(t, here("becomes-folder-here/x"), []byte("mine"))
		for _, name := range []string{"becomes-file-there", "becomes-file-both"} {
			must(t, os.RemoveAll(there(name)))
			write(t, there(name), []byte("theirs"))
		}
		write(t, here("becomes-file-both/new"), []byte("mine"))
		must(t, os.Rename(there("moves-there"), there("moved")))
		write(t, here("moves-there/b"), []byte("mine"))
		must(t, os.RemoveAll(there("removed-there")))
		write(t, here("removed-there/new"), []byte("mine"))
		must(t, os.RemoveAll(here("removed-here")))
		write(t, there("removed-here/new"), []byte("theirs"))
		must(t, os.Link(there("linked"), there("folder/other name")))

		root := first.publish(store)
		merged := second.merge(store, root)
		want := strings.Join([]string{
			"attributes attributes attributes", "changed added added.conflict-second", "changed both both.conflict-second",
			"deleted changed-here-gone-there changed-here-gone-there", "deleted gone-here-changed-there gone-here-changed-there",
			"deleted moves-there/b moves-there/b", "type becomes-file-both becomes-file-both.conflict-second",
			"type becomes-folder-there becomes-folder-there.conflict-second",
		}, "\n")
		assertSame(t, merged.kinds(), want)
		for name, content := range map[string]string{
			"mine": "mine mine", "theirs": "theirs theirs", "both": "theirs both", "both.conflict-second": "mine both", "added": "theirs added",
			"added.conflict-second": "mine added", "added-here": "mine", "equal": "equal", "equal.conflict-second": "(none)", "gone-there": "(none)",
			"gone-here": "(none)", "gone-both": "(none)", "changed-here-gone-there": "mine changed-here-gone-there",
			"gone-here-changed-there": "theirs gone-here-changed-there", "mode-there-content-here": "mine mode-there-content-here",
			"becomes-folder-there/x": "theirs", "becomes-folder-there.conflict-second": "mine", "becomes-folder-here/x": "mine",
			"becomes-file-there": "theirs", "becomes-file-both": "theirs", "becomes-file-both.conflict-second/new": "mine", "moved/a": "base moves-there/a",
			"moved/b": "base moves-there/b", "moves-there/b": "mine", "moves-there/a": "(none)", "removed-there/new": "mine", "removed-there/x": "(none)",
			"removed-here/new": "theirs", "removed-here/x": "(none)", "folder/other name": "base linked",
		} {
			if got := read(t, here(name)); got != content {
				t.Errorf("%s has %q instead of %q", name, got, content)
			}
		}
		var one, other unix.Stat_t
		must(t, unix.Stat(here("linked"), &one))
		must(t, unix.Stat(here("folder/other name"), &other))
		if one.Ino != other.Ino {
			t.Error("the two names are not of one file")
		}
		must(t, unix.Stat(here("mode-there-content-here"), &one))
		if one.Mode&0o7777 != 0o4711 {
			t.Errorf("the mode is %o", one.Mode)
		}
		again := second.merge(store, root)
		assertSame(t, again.kinds(), want)
		head := root
		first.head, second.head = root, root
		exchange(t, store, &head, second, first)
		if first.merge(store, head).Applied != 0 {
			t.Error("a merge of the base changes the tree")
		}
	})
}

func TestAMergeFetchesOnlyWhatTheTreeLacks(t *testing.T) {
	onFileSystems(t, func(t *testing.T, volume string) {
		first, second, store := pair(t, volume, func(root string) {
			must(t, os.Mkdir(filepath.Join(root, "a"), 0o755))
			write(t, filepath.Join(root, "a/large"), noise(7, 3<<20+5))
			write(t, filepath.Join(root, "grows"), noise(8, 3<<20))
		})
		must(t, os.Rename(filepath.Join(first.data, "a"), filepath.Join(first.data, "z")))
		must(t, os.Link(filepath.Join(first.data, "z/large"), filepath.Join(first.data, "another name")))
		file, err := os.OpenFile(filepath.Join(first.data, "grows"), os.O_WRONLY|os.O_APPEND, 0)
		must(t, err)
		_, err = file.Write(noise(9, 1000))
		must(t, err)
		must(t, file.Close())
		root := first.publish(store)
		_, fetched, code, message := second.tryMerge(store, root)
		if code != 0 || len(fetched) != 2 { // the segment, and what was appended
			t.Fatalf("%d packs were fetched: %s", len(fetched), message)
		}
		assertSame(t, describe(t, second.data), describe(t, first.data))
		must(t, os.Rename(filepath.Join(first.data, "grows"), filepath.Join(first.data, "grown")))
		root = first.publish(store)
		if _, fetched, code, message = second.tryMerge(store, root); code != 0 || len(fetched) != 1 {
			t.Fatalf("%d packs were fetched for a file that was renamed: %s", len(fetched), message)
		}
		// Content that the tree had, until a sandbox changed it, is fetched.
		must(t, os.Rename(filepath.Join(first.data, "grown"), filepath.Join(first.data, "grows")))
		root = first.publish(store)
		write(t, filepath.Join(second.data, "grown"), []byte("mine"))
		if merged := second.merge(store, root); merged.kinds() != "deleted grown grown" {
			t.Fatalf("conflicts %q", merged.kinds())
		}
		if read(t, filepath.Join(second.data, "grows")) != read(t, filepath.Join(first.data, "grows")) || read(t, filepath.Join(second.data, "grown")) != "mine" {
			t.Fatal("the merge has other content")
		}
	})
}

func TestAWriterOfAFileThatIsReplacedLosesNothing(t *testing.T) {
	onFileSystems(t, func(t *testing.T, volume string) {
		names := []string{"replaced", "removed", "mapped", "quiet", "conflict"}
		first, second, store := pair(t, volume, func(root string) {
			must(t, os.Mkdir(filepath.Join(root, "folder"), 0o755))
			for _, name := range names {
				write(t, filepath.Join(root, "folder", name), noise(1, 10_000))
			}
		})
		here := func(name string) string { return filepath.Join(second.data, "folder", name) }
		there := func(name string) string { return filepath.Join(first.data, "folder", name) }
		open := map[string]*os.File{}
		for _, name := range names {
			file, err := os.OpenFile(here(name), os.O_RDWR, 0)
			must(t, err)
			defer file.Close()
			open[name] = file
		}
		memory, err := unix.Mmap(int(open["mapped"].Fd()), 0, 10_000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		must(t, err)
		defer func() { _ = unix.Munmap(memory) }()
		_, err = open["conflict"].WriteAt([]byte("mine, before the merge"), 0)
		must(t, err)
		for _, name := range []string{"replaced", "mapped", "quiet", "conflict"} {
			write(t, there(name), []byte("theirs"))
		}
		must(t, os.Remove(there("removed")))
		root := first.publish(store)
		// A crash, or a full disk, has cut off what was written last.
		write(t, filepath.Join(second.state, "limbo.jsonl"), []byte(`{"folder":"L3RtcA==","name":"a.1`))
		if kinds := (second.merge(store, root)).Conflicts; len(kinds) != 1 {
			t.Fatalf("conflicts %v instead of one", kinds)
		}
		_, err = open["replaced"].WriteAt([]byte("late"), 5)
		must(t, err)
		_, err = open["removed"].WriteAt([]byte("late"), 5)
		must(t, err)
		memory[7] = 42
		_, err = open["conflict"].WriteAt([]byte(" and after"), 22)
		must(t, err)
		// What a command that has failed has found is printed by the next.
		crash(t, "voltree-scanned", second.commitArguments()...)
		late := second.commit()
		want := "late-write folder/mapped folder/mapped.conflict-second\nlate-write folder/removed folder/removed.conflict-second\n" +
			"late-write folder/replaced folder/replaced.conflict-second"
		assertSame(t, late.kinds(), want)
		if got := read(t, here("conflict.conflict-second")); !strings.HasPrefix(got, "mine, before the merge and after") {
			t.Errorf("the version in conflict has %.60q", got)
		}
		if got := read(t, here("replaced.conflict-second")); len(got) != 10_000 || got[5:9] != "late" {
			t.Error("a late write is lost")
		}
		if got := read(t, here("mapped.conflict-second")); len(got) != 10_000 || got[7] != 42 {
			t.Error("a late write through a mapping is lost")
		}
		// The quiet one stays displaced while it is open, and goes some time after.
		left := func() int {
			names, err := os.ReadDir(second.data + ".displaced")
			must(t, err)
			return len(names)
		}
		backdate(t, second.state)
		second.publish(store)
		if left() != 1 {
			t.Fatalf("%d displaced files instead of the one that is open", left())
		}
		open["quiet"].Close()
		second.publish(store)
		if left() != 0 {
			t.Fatalf("%d displaced files", left())
		}
	})
}

func TestADisplacedFileStaysWhenTheClockIsSetBack(t *testing.T) {
	hosttest.NeedsRoot(t, "owners of files")
	first, second, store := pair(t, t.TempDir(), func(root string) { write(t, filepath.Join(root, "file"), []byte("base")) })
	write(t, filepath.Join(first.data, "file"), []byte("theirs"))
	second.merge(store, first.publish(store))
	list := filepath.Join(second.state, "limbo.jsonl")
	var item struct{ Since int64 }
	must(t, json.Unmarshal([]byte(read(t, list)), &item))
	ahead := fmt.Sprintf(`"since":%d`, item.Since+3600)
	write(t, list, []byte(strings.ReplaceAll(read(t, list), fmt.Sprintf(`"since":%d`, item.Since), ahead)))
	second.commit()
	if left := read(t, list); left == "(none)" || strings.Contains(left, ahead) {
		t.Fatalf("of the time before the clock was set back there is: %s", left)
	}
	backdate(t, second.state)
	second.commit()
	assertSame(t, read(t, list), "(none)")
}

// backdate makes displaced files as old as they must be to be removed.
func backdate(t *testing.T, state string) {
	t.Helper()
	path := filepath.Join(state, "limbo.jsonl")
	data := read(t, path)
	now := time.Now().Unix()
	for second := now - 100; second <= now; second++ {
		data = strings.ReplaceAll(data, fmt.Sprintf(`"since":%d`, second), fmt.Sprintf(`"since":%d`, now-1000))
	}
	write(t, path, []byte(data))
}
