package main

import (
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"releap/host/internal/hosttest"
)

// model knows what sandboxes have written, and which of it a sandbox has overwritten or removed where it saw it.
type model struct {
	t       *testing.T
	random  *rand.Rand
	written int
	// Content that no sandbox has given up. Each is of one write.
	alive map[string]bool
}

// content of a file begins with its number.
func (m *model) fresh() []byte {
	m.written++
	id := fmt.Sprintf("content %d.", m.written)
	m.alive[id] = true
	return append([]byte(id), noise(int64(m.written), m.random.Intn(3)*m.random.Intn(5000))...)
}

func contentOf(data string) string { return data[:strings.IndexByte(data, '.')+1] }

// lose forgets all content at or below a path.
func (m *model) lose(path string) {
	_ = filepath.Walk(path, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			if info.Sys() != nil {
				delete(m.alive, contentOf(read(m.t, path)))
			}
		}
		return nil
	})
}

var names = []string{"a", "b", "c", "\xff", "d e"}

func (m *model) path(root string) string {
	path := root
	for depth := m.random.Intn(3); depth >= 0; depth-- {
		path = filepath.Join(path, names[m.random.Intn(len(names))])
		if info, err := os.Lstat(path); err != nil || !info.IsDir() {
			break
		}
	}
	return path
}

// step does something that a sandbox might do. What fails, does nothing.
func (m *model) step(root string) {
	path, other := m.path(root), m.path(root)
	info, err := os.Lstat(path)
	exists, isFile, isFolder := err == nil, err == nil && info.Mode().IsRegular(), err == nil && info.IsDir()
	switch m.random.Intn(14) {
	case 0, 1, 2, 3: // written anew, as a new file that takes the name or in place
		if isFolder || (exists && !isFile) {
			return
		}
		if m.random.Intn(2) == 0 {
			m.lose(path)
			must(m.t, os.WriteFile(path+"~", m.fresh(), 0o644))
			must(m.t, os.Rename(path+"~", path))
			return
		}
		m.lose(path)
		must(m.t, os.WriteFile(path, m.fresh(), 0o644))
	case 4: // appended to
		if isFile {
			file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			must(m.t, err)
			_, err = file.Write(noise(int64(m.random.Int()), 100))
			must(m.t, err)
			must(m.t, file.Close())
		}
	case 5, 6:
		if !exists {
			must(m.t, os.Mkdir(path, 0o755))
		}
	case 7:
		if exists && m.random.Intn(2) == 0 {
			m.lose(path)
			must(m.t, os.RemoveAll(path))
		}
	case 8, 9: // renamed to a free name
		if _, err := os.Lstat(other); exists && err != nil && !strings.HasPrefix(other, path+"/") {
			must(m.t, os.Rename(path, other))
		}
	case 10:
		if _, err := os.Lstat(other); isFile && err != nil {
			must(m.t, os.Link(path, other))
		}
	case 11:
		if exists && info.Mode()&os.ModeSymlink == 0 {
			must(m.t, os.Chmod(path, []os.FileMode{0o600, 0o755, 0o4711 | os.ModeSetuid}[m.random.Intn(3)]))
		}
	case 12:
		if !exists {
			must(m.t, os.Symlink(names[m.random.Intn(len(names))], path))
		}
	case 13:
		if isFile || isFolder {
			_ = unix.Setxattr(path, "user.x", []byte{byte(m.random.Intn(256))}, 0)
		}
	}
}

// tree gives the whole of a tree by path: what each path is, and for files and links what they hold.
func flat(t *testing.T, root string) map[string]string {
	entries, _ := flatBoth(t, root)
	return entries
}

// flatBoth gives attributes, too.
func flatBoth(t *testing.T, root string) (entries, attributes map[string]string) {
	entries, attributes = map[string]string{}, map[string]string{}
	must(t, filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		must(t, err)
		name := strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
		value := make([]byte, 1)
		n, _ := unix.Lgetxattr(path, "user.x", value)
		attributes[name] = fmt.Sprint(info.Mode(), n, value)
		switch {
		case info.IsDir():
			entries[name] = "folder"
		case info.Mode().IsRegular():
			entries[name] = "file " + read(t, path)
		default:
			target, err := os.Readlink(path)
			must(t, err)
			entries[name] = "link " + target
		}
		return nil
	}))
	return entries, attributes
}

// checkMerge compares a merged tree with what a merge by path must give.
func checkMerge(t *testing.T, base, mine, theirs, merged, baseAttributes, mineAttributes, theirAttributes map[string]string) {
	t.Helper()
	all := map[string]bool{}
	for _, tree := range []map[string]string{base, mine, theirs} {
		for path := range tree {
			all[path] = true
		}
	}
	for path := range all {
		// A folder above that has become something else, here or there, moves what is below it.
		if changesAbove(path, base, mine, theirs) {
			continue
		}
		is, want := merged[path], ""
		switch {
		case theirs[path] == base[path], mine[path] == theirs[path]:
			want = mine[path]
		case mine[path] == base[path], mine[path] != "":
			want = theirs[path]
		default: // removed here, changed there
			want = theirs[path]
		}
		if theirs[path] == "" && (mine[path] != base[path] || mineAttributes[path] != baseAttributes[path]) {
			want = mine[path] // changed here, removed there
		}
		if mine[path] == "" && theirAttributes[path] != baseAttributes[path] {
			want = theirs[path]
		}
		if is == want || (is == "folder" && want == "" && hasBelow(path, merged)) || (want == "folder" && is == "" && (mine[path] == "" || theirs[path] == "")) {
			continue
		}
		if want == "folder" && theirs[path] == base[path] && hasBelow(path, theirs) {
			continue
		}
		if theirs[path] == base[path] && is == "folder" && hasBelow(path, theirs) { // what theirs has in it has moved mine aside
			continue
		}
		t.Fatalf("%q: base %.40q, mine %.40q, theirs %.40q: merged %.40q instead of %.40q", path, base[path], mine[path], theirs[path], is, want)
	}
}

func changesAbove(path string, trees ...map[string]string) bool {
	for above := filepath.Dir(path); above != "."; above = filepath.Dir(above) {
		for _, tree := range trees {
			if kind, ok := tree[above]; ok && kind != "folder" {
				return true
			}
		}
	}
	return false
}

func hasBelow(path string, tree map[string]string) bool {
	for other := range tree {
		if strings.HasPrefix(other, path+"/") {
			return true
		}
	}
	return false
}

// runs are few each time, and all in the nightly run.
func runs(usual, nightly int) (count int, seed int64) {
	if os.Getenv("RELEAP_TEST_NIGHTLY") == "1" {
		return nightly, time.Now().UnixNano()
	}
	return usual, 1
}

func TestNothingIsLostBetweenTwoHosts(t *testing.T) {
	hosttest.NeedsRoot(t, "owners of files")
	count, seed := runs(12, 150)
	if text := os.Getenv("RELEAP_TEST_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseInt(text, 10, 64)
		must(t, err)
		count = 1
	}
	if text := os.Getenv("RELEAP_TEST_RUNS"); text != "" {
		var err error
		count, err = strconv.Atoi(text)
		must(t, err)
	}
	inMemory(t)
	for run := 0; run < count; run++ {
		t.Run(fmt.Sprint(seed+int64(run)), func(t *testing.T) { twoHosts(t, seed+int64(run)) })
	}
}

func twoHosts(t *testing.T, seed int64) {
	m := &model{t: t, random: rand.New(rand.NewSource(seed)), alive: map[string]bool{}}
	volume, store, head := t.TempDir(), t.TempDir(), ""
	hosts := []*host{newHost(t, volume, "first"), newHost(t, volume, "second")}
	bases := []map[string]string{{"": "folder"}, {"": "folder"}}
	baseAttributes := []map[string]string{{}, {}}
	var committed, committedAttributes map[string]string
	for round := 0; round < 6; round++ {
		for _, host := range hosts {
			for steps := m.random.Intn(12); steps > 0; steps-- {
				m.step(host.data)
			}
		}
		at := m.random.Intn(2)
		host := hosts[at]
		if host.head != head {
			mine, attributes := flatBoth(t, host.data)
			if m.random.Intn(3) == 0 {
				crashMerge(t, m.random, host, store, head)
			}
			host.merge(store, head)
			host.head = head
			checkMerge(t, bases[at], mine, committed, flat(t, host.data), baseAttributes[at], attributes, committedAttributes)
			bases[at], baseAttributes[at] = committed, committedAttributes
		}
		if root := host.publish(store); root != "same" {
			head, host.head = root, root
			committed, committedAttributes = flatBoth(t, host.data)
			bases[at], baseAttributes[at] = committed, committedAttributes
		}
	}
	exchange(t, store, &head, hosts...)
	found := map[string]bool{}
	for _, kind := range flat(t, hosts[0].data) {
		if strings.HasPrefix(kind, "file ") {
			found[contentOf(kind[len("file "):])] = true
		}
	}
	var lost []string
	for content := range m.alive {
		if !found[content] {
			lost = append(lost, content)
		}
	}
	sort.Strings(lost)
	if len(lost) > 0 {
		t.Fatalf("seed %d: lost %q", seed, lost)
	}
}

// crashMerge begins a merge in a process that ends with SIGKILL somewhere, if it comes to that step.
func crashMerge(t *testing.T, random *rand.Rand, host *host, store, root string) {
	t.Helper()
	c := newCaller(t, store, root)
	defer os.RemoveAll(c.incoming)
	steps := []string{
		"voltree-staged", "voltree-applied", "voltree-before-swap", "voltree-swapped", "voltree-all-applied", "voltree-finalized", "voltree-replaced", "voltree-merged",
	}
	tryCrash(t, c, steps[random.Intn(len(steps))], host.mergeArguments(c, root)...)
}
