package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"releap/host/internal/hosttest"
	"releap/host/internal/volume/displaced"
	"releap/host/internal/volume/rpc"
)

const asVoltree = "RELEAP_TEST_AS_VOLTREE"

// TestMain makes this program voltree itself, for tests that need a process.
func TestMain(m *testing.M) {
	if os.Getenv(asVoltree) != "" {
		os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// onFileSystems runs a test in a folder of the machine's own file system, and in one of volumes: XFS with reflinks.
func onFileSystems(t *testing.T, test func(t *testing.T, folder string)) {
	t.Helper()
	hosttest.NeedsRoot(t, "owners of files")
	t.Run("plain", func(t *testing.T) { test(t, t.TempDir()) })
	t.Run("xfs", func(t *testing.T) { test(t, xfs(t, "1g")) })
}

func xfs(t *testing.T, size string) string {
	t.Helper()
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		t.Skip("mkfs.xfs is not installed")
	}
	folder := t.TempDir()
	image, mount := filepath.Join(folder, "image"), filepath.Join(folder, "mount")
	must(t, os.Mkdir(mount, 0o700))
	command(t, "truncate", "-s", size, image)
	command(t, "mkfs.xfs", "-q", "-m", "reflink=1", image)
	command(t, "mount", "-o", "loop,nosuid,nodev", image, mount)
	t.Cleanup(func() { command(t, "umount", mount) })
	return mount
}

// inMemory puts the test's folders into memory: hundreds of commits would wait for the disk.
func inMemory(t *testing.T) {
	t.Helper()
	hosttest.NeedsRoot(t, "mounts a file system")
	memory := t.TempDir()
	must(t, unix.Mount("tmpfs", memory, "tmpfs", 0, "size=1g"))
	t.Cleanup(func() { must(t, unix.Unmount(memory, 0)) })
	t.Setenv("TMPDIR", memory)
}

func command(t *testing.T, name string, arguments ...string) {
	t.Helper()
	if output, err := exec.Command(name, arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, arguments, err, output)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// host is one of the hosts that have a volume.
type host struct {
	t                           *testing.T
	data, state, outgoing, head string
}

// newHost has its tree in a folder of `volume`, and all else in another file system, as the runner does.
func newHost(t *testing.T, volume, name string) *host {
	t.Helper()
	temporary := t.TempDir()
	h := &host{t, filepath.Join(volume, name), filepath.Join(temporary, "state"), filepath.Join(temporary, "outgoing"), ""}
	must(t, os.Mkdir(h.data, 0o755))
	return h
}

type blob = rpc.Blob

type answer struct {
	Root      json.RawMessage `json:"root"`
	New       []blob          `json:"new"`
	Dropped   []string        `json:"dropped"`
	Packs     int             `json:"packs"`
	Changed   int             `json:"changed"`
	Files     int             `json:"files"`
	UsedBytes int64           `json:"used_bytes"`
	Skipped   []struct{ Path, Reason string }
	Applied   int
	Conflicts []displaced.Conflict
}

// root gives the digest of a commit in hexadecimal digits, or "same".
func (a *answer) root() string {
	var whole blob
	if json.Unmarshal(a.Root, &whole) == nil {
		return strings.TrimPrefix(whole.Digest, "sha256:")
	}
	var text string
	_ = json.Unmarshal(a.Root, &text)
	return strings.TrimPrefix(text, "sha256:")
}

// try runs voltree in this process. It gets no pack that it asks for.
func try(arguments ...string) (answer, int, string) {
	return new(caller).try(arguments...)
}

func (h *host) do(arguments ...string) answer {
	h.t.Helper()
	result, code, message := try(arguments...)
	if code != 0 {
		h.t.Fatalf("voltree %v ended with %d: %s", arguments, code, message)
	}
	return result
}

func (h *host) commitArguments() []string {
	return []string{"commit", "--root", h.data, "--state", h.state, "--out", h.outgoing}
}

func (h *host) commit() answer {
	h.t.Helper()
	return h.do(h.commitArguments()...)
}

// publish commits, uploads what is new into a store, and accepts. It gives the root.
func (h *host) publish(store string) string {
	h.t.Helper()
	result := h.commit()
	root := result.root()
	if root != "same" {
		h.upload(store, append(result.New, blob{Digest: root}))
		h.do("accept", "--state", h.state, root)
	}
	return root
}

func (h *host) upload(store string, blobs []blob) {
	h.t.Helper()
	for _, blob := range blobs {
		name := strings.TrimPrefix(blob.Digest, "sha256:")
		data, err := os.ReadFile(filepath.Join(h.outgoing, name))
		must(h.t, err)
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != name || (blob.Bytes != 0 && blob.Bytes != uint64(len(data))) {
			h.t.Fatalf("the blob %s has other content", name)
		}
		must(h.t, os.WriteFile(filepath.Join(store, name), data, 0o600))
	}
}

func (h *host) checkoutArguments(c *caller, root string) []string {
	return []string{"checkout", "--root", h.data, "--state", h.state, "--manifest", filepath.Join(c.incoming, root), "--packs", c.incoming}
}

// tryCheckout fetches what it is asked for from a store.
func (h *host) tryCheckout(store, root string) (answer, int, string) {
	h.t.Helper()
	c := newCaller(h.t, store, root)
	defer os.RemoveAll(c.incoming)
	return c.try(h.checkoutArguments(c, root)...)
}

func (h *host) checkout(store, root string) {
	h.t.Helper()
	if _, code, message := h.tryCheckout(store, root); code != 0 {
		h.t.Fatalf("the checkout ended with %d: %s", code, message)
	}
}

func (h *host) mergeArguments(c *caller, root string) []string {
	return []string{
		"merge", "--root", h.data, "--state", h.state, "--manifest", filepath.Join(c.incoming, root), "--packs", c.incoming,
		"--displaced", h.data + ".displaced", "--name", filepath.Base(h.data),
	}
}

// tryMerge gives the packs that were fetched, too.
func (h *host) tryMerge(store, root string) (merged answer, fetched []string, code int, message string) {
	h.t.Helper()
	c := newCaller(h.t, store, root)
	defer os.RemoveAll(c.incoming)
	merged, code, message = c.try(h.mergeArguments(c, root)...)
	return merged, c.fetched, code, message
}

func (h *host) merge(store, root string) answer {
	h.t.Helper()
	merged, _, code, message := h.tryMerge(store, root)
	if code != 0 {
		h.t.Fatalf("the merge ended with %d: %s", code, message)
	}
	return merged
}

// describe tells all of a tree but inode numbers and ctimes: by path, sorted. It shares no code with the program.
func describe(t *testing.T, root string) string {
	t.Helper()
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	defer unix.Close(fd)
	d := describer{t: t, names: map[uint64]string{}}
	d.one(fd, ".", "")
	return strings.Join(d.lines, "\n") + "\n"
}

type describer struct {
	t     *testing.T
	lines []string
	names map[uint64]string
}

func (d *describer) one(parent int, name, path string) {
	var st unix.Stat_t
	must(d.t, unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW))
	line := fmt.Sprintf("%q %o %d:%d", path, st.Mode, st.Uid, st.Gid)
	line += fmt.Sprintf(" %d.%09d", st.Mtim.Sec, st.Mtim.Nsec)
	line += d.xattrs(parent, name)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		return
	case unix.S_IFLNK:
		buffer := make([]byte, 4096)
		n, err := unix.Readlinkat(parent, name, buffer)
		must(d.t, err)
		line += fmt.Sprintf(" -> %q", buffer[:n])
	case unix.S_IFREG:
		if first, ok := d.names[st.Ino]; ok {
			line += fmt.Sprintf(" is %q", first)
		} else {
			d.names[st.Ino] = path
			line += " " + d.content(parent, name)
		}
	case unix.S_IFDIR:
		d.lines = append(d.lines, line)
		fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		must(d.t, err)
		file := os.NewFile(uintptr(fd), path)
		defer file.Close()
		names, err := file.Readdirnames(-1)
		must(d.t, err)
		sort.Strings(names)
		for _, child := range names {
			d.one(fd, child, path+"/"+child)
		}
		return
	}
	d.lines = append(d.lines, line)
}

func (d *describer) content(parent int, name string) string {
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	must(d.t, err)
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	info, err := file.Stat()
	must(d.t, err)
	sum := sha256.New()
	const block = 4096
	buffer := make([]byte, block)
	for at := int64(0); ; {
		data, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if err != nil {
			break
		}
		end, err := unix.Seek(fd, data, unix.SEEK_HOLE)
		must(d.t, err)
		for data -= data % block; data < end; data += block {
			n, err := file.ReadAt(buffer, data)
			if n == 0 {
				must(d.t, err)
			}
			// Zeros are as good as a hole.
			if len(bytes.Trim(buffer[:n], "\x00")) > 0 {
				fmt.Fprintf(sum, "%d ", data)
				sum.Write(buffer[:n])
			}
		}
		at = end
	}
	return fmt.Sprintf("%d %x", info.Size(), sum.Sum(nil)[:8])
}

func (d *describer) xattrs(parent int, name string) string {
	path := fmt.Sprintf("/proc/self/fd/%d/%s", parent, name)
	list := make([]byte, 64*1024)
	n, err := unix.Llistxattr(path, list)
	must(d.t, err)
	var lines []string
	for _, attribute := range strings.Split(string(list[:n]), "\x00") {
		if attribute == "" || strings.HasPrefix(attribute, "security.selinux") || strings.HasPrefix(attribute, "trusted.") {
			continue
		}
		value := make([]byte, 64*1024)
		n, err := unix.Lgetxattr(path, attribute, value)
		must(d.t, err)
		lines = append(lines, fmt.Sprintf(" %s=%x", attribute, sha256.Sum256(value[:n])))
	}
	sort.Strings(lines)
	return strings.Join(lines, "")
}

func assertSame(t *testing.T, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := 0; i < len(gotLines) && i < len(wantLines); i++ {
		if gotLines[i] != wantLines[i] {
			t.Fatalf("line %d\n got %.600s\nwant %.600s", i, gotLines[i], wantLines[i])
		}
	}
	t.Fatalf("%d lines instead of %d", len(gotLines), len(wantLines))
}
