package main

import (
	"bytes"
	"fmt"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	must(t, os.WriteFile(path, content, 0o644))
}

func noise(seed int64, size int) []byte {
	data := make([]byte, size)
	rand.New(rand.NewSource(seed)).Read(data)
	return data
}

// plant fills a tree with one of everything.
func plant(t *testing.T, root string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(root, name) }
	must(t, os.Mkdir(at("folder"), 0o750))
	must(t, os.Mkdir(at("empty"), 0o1777))
	write(t, at("folder/large"), noise(1, 3<<20+17))
	write(t, at("folder/none"), nil)
	write(t, at("setuid"), []byte("#!/bin/true"))
	must(t, os.Chown(at("setuid"), 1000, 1001))
	must(t, os.Chmod(at("setuid"), 0o4755|os.ModeSetuid))
	must(t, unix.Setxattr(at("setuid"), "security.capability", []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	must(t, unix.Setxattr(at("folder/large"), "user.word", []byte("x\x00y"), 0))
	must(t, unix.Setxattr(at("folder"), "user.long", noise(2, 3000), 0))
	must(t, os.Link(at("folder/large"), at("empty/other name")))
	must(t, os.Link(at("folder/large"), at("another")))
	must(t, os.Symlink("/etc/passwd", at("to a file")))
	must(t, os.Symlink("../..", at("folder/up")))
	must(t, os.Symlink("nowhere\xff", at("dangling")))
	must(t, unix.Lchown(at("dangling"), 5, 6))
	must(t, unix.Mkfifo(at("fifo"), 0o620))
	must(t, unix.Mknod(at("whiteout"), unix.S_IFCHR, 0))
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: at("socket"), Net: "unix"})
	must(t, err)
	listener.SetUnlinkOnClose(false)
	listener.Close()
	for _, name := range []string{"\xff\xfe", "line\nbreak", " ", "-rf", `back\slash`, "a.b", "a", "a b", strings.Repeat("n", 255), "ü", "\x01"} {
		write(t, at(name), []byte(name))
	}
	sparse, err := os.Create(at("sparse"))
	must(t, err)
	for _, offset := range []int64{100, 5 << 20, 5<<20 + 20_000, 9<<20 + 4096} {
		_, err = sparse.WriteAt(noise(offset, 5000), offset)
		must(t, err)
	}
	must(t, sparse.Truncate(20<<30))
	must(t, sparse.Close())
	must(t, os.Chmod(at("sparse"), 0))
	deepen(t, root, 40)
	for i := 0; i < 700; i++ {
		write(t, at(fmt.Sprintf("empty/%d", i*7919%1000)), []byte{byte(i), byte(i >> 8)})
	}
	old := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: -86400, Nsec: 123456789}}
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, at("folder"), old, 0))
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, at("dangling"), old, unix.AT_SYMLINK_NOFOLLOW))
}

// deepen makes folders in one another until the path is longer than any system call takes.
func deepen(t *testing.T, root string, depth int) {
	t.Helper()
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	name := strings.Repeat("d", 200)
	for i := 0; i < depth; i++ {
		must(t, unix.Mkdirat(fd, name, 0o700))
		next, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	file, err := unix.Openat(fd, "bottom", unix.O_CREAT|unix.O_WRONLY, 0o600)
	must(t, err)
	_, err = unix.Write(file, []byte("deep"))
	must(t, err)
	unix.Close(file)
	unix.Close(fd)
}

// advanceCtime waits until a change gives a file another ctime than it has now.
func advanceCtime() { time.Sleep(60 * time.Millisecond) }

func TestACheckoutIsEqualToWhatWasCommitted(t *testing.T) {
	onFileSystems(t, func(t *testing.T, volume string) {
		first, second, store := newHost(t, volume, "first"), newHost(t, volume, "second"), t.TempDir()
		plant(t, first.data)
		want := describe(t, first.data)
		committed := first.commit()
		if len(committed.Skipped) != 1 || committed.Skipped[0].Path != "socket" {
			t.Fatalf("skipped %v instead of the socket", committed.Skipped)
		}
		var packed uint64
		for _, pack := range committed.New {
			packed += pack.Bytes
		}
		if packed > 5<<20 {
			t.Fatalf("%d bytes in packs: holes are in them", packed)
		}
		root := first.publish(store)
		second.checkout(store, root)
		assertSame(t, describe(t, second.data), want)
		var info unix.Stat_t
		must(t, unix.Stat(filepath.Join(second.data, "sparse"), &info))
		if info.Blocks*512 > 1<<20 {
			t.Fatalf("the sparse file takes %d bytes", info.Blocks*512)
		}
		for _, host := range []*host{first, second} {
			advanceCtime()
			if root := host.publish(store); root != "same" {
				t.Fatalf("a tree that has not changed is committed as %s", root)
			}
		}
		assertSame(t, describe(t, first.data), want)
		// What an interrupted checkout has left does not matter.
		write(t, filepath.Join(second.data, "folder/stray"), []byte("x"))
		must(t, os.RemoveAll(filepath.Join(second.data, "empty")))
		write(t, filepath.Join(second.data, "empty"), []byte("a file"))
		must(t, os.Remove(filepath.Join(second.data, "setuid")))
		must(t, os.MkdirAll(filepath.Join(second.data, "setuid/x/y"), 0o700))
		must(t, unix.Setxattr(filepath.Join(second.data, "folder"), "user.stray", []byte("x"), 0))
		second.checkout(store, root)
		assertSame(t, describe(t, second.data), want)
	})
}

func TestOnlyWhatHasChangedIsStored(t *testing.T) {
	onFileSystems(t, func(t *testing.T, volume string) {
		host, store := newHost(t, volume, "data"), t.TempDir()
		for i := 0; i < 30; i++ {
			must(t, os.Mkdir(filepath.Join(host.data, fmt.Sprint(i)), 0o755))
			for j := 0; j < 60; j++ {
				write(t, filepath.Join(host.data, fmt.Sprint(i), fmt.Sprint(j)), noise(int64(i*100+j), 10_000))
			}
		}
		host.publish(store)
		advanceCtime()
		host.publish(store)
		newBytes := func(answer answer) (sum uint64) {
			for _, pack := range answer.New {
				sum += pack.Bytes
			}
			return sum
		}
		write(t, filepath.Join(host.data, "7/7"), noise(-1, 10_000))
		changed := host.commit()
		if changed.Changed != 1 || newBytes(changed) > 200_000 || newBytes(changed) < 10_000 || len(changed.New) != 2 {
			t.Fatalf("one changed file: %d changed, %d bytes in %d packs", changed.Changed, newBytes(changed), len(changed.New))
		}
		host.publish(store)
		advanceCtime()
		host.publish(store)
		must(t, os.Rename(filepath.Join(host.data, "12"), filepath.Join(host.data, "moved")))
		if moved := host.commit(); newBytes(moved) > 400_000 || len(moved.New) != 2 {
			t.Fatalf("a renamed folder: %d bytes in %d packs", newBytes(moved), len(moved.New))
		}
		host.publish(store)
		// A change that pretends to be none: same size, same mtime.
		path := filepath.Join(host.data, "7/7")
		info, err := os.Stat(path)
		must(t, err)
		write(t, path, noise(-2, 10_000))
		must(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
		if hidden := host.commit(); hidden.Changed != 1 || newBytes(hidden) < 10_000 {
			t.Fatalf("a change with the old mtime: %d changed", hidden.Changed)
		}
		host.publish(store)
		for i := 0; i < 30; i++ {
			must(t, os.RemoveAll(filepath.Join(host.data, fmt.Sprint(i))))
		}
		must(t, os.RemoveAll(filepath.Join(host.data, "moved")))
		if emptied := host.commit(); emptied.Files != 0 || emptied.UsedBytes != 0 || emptied.Packs != 1 || len(emptied.Dropped) == 0 {
			t.Fatalf("an emptied tree: %+v", emptied)
		}
	})
}

func TestWritesThroughAMappingAreNotMissed(t *testing.T) {
	onFileSystems(t, func(t *testing.T, volume string) {
		first, second, store := newHost(t, volume, "first"), newHost(t, volume, "second"), t.TempDir()
		path := filepath.Join(first.data, "mapped")
		write(t, path, make([]byte, 300_000))
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		defer file.Close()
		memory, err := unix.Mmap(int(file.Fd()), 0, 300_000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		must(t, err)
		defer func() { _ = unix.Munmap(memory) }()
		root := ""
		for round := byte(1); round < 12; round++ {
			memory[100_000] = round
			if committed := first.publish(store); committed != "same" {
				root = committed
			}
			memory[100_001] = round
			if round%3 == 0 {
				advanceCtime()
			}
		}
		if committed := first.publish(store); committed != "same" {
			root = committed
		}
		second.checkout(store, root)
		got, err := os.ReadFile(filepath.Join(second.data, "mapped"))
		must(t, err)
		if !bytes.Equal(got, memory) {
			t.Fatalf("the last writes are not in the last commit: %v", got[100_000:100_002])
		}
	})
}

func TestATreeThatChangesWhileItIsCommitted(t *testing.T) {
	onFileSystems(t, func(t *testing.T, volume string) {
		first, second, store := newHost(t, volume, "first"), newHost(t, volume, "second"), t.TempDir()
		outside := filepath.Join(volume, "outside")
		must(t, os.Mkdir(outside, 0o755))
		secret := []byte("content of the host that no tenant may see")
		write(t, filepath.Join(outside, "secret"), secret)
		write(t, filepath.Join(outside, "fixed"), secret)
		var stop int32
		var ended []chan struct{}
		loop := func(work func(round int)) {
			end := make(chan struct{})
			ended = append(ended, end)
			go func() {
				defer close(end)
				for round := 0; atomic.LoadInt32(&stop) == 0; round++ {
					work(round)
					time.Sleep(time.Millisecond) // the disk has others to serve
				}
			}()
		}
		at := func(name string) string { return filepath.Join(first.data, name) }
		for i := 0; i < 20; i++ {
			must(t, os.Mkdir(at(fmt.Sprintf("x%d", i)), 0o755))
			write(t, at(fmt.Sprintf("x%d/fixed", i)), []byte("own"))
			write(t, at(fmt.Sprintf("f%d", i)), []byte("own"))
		}
		loop(func(round int) { // folders and files become links out of the tree, FIFOs, and themselves again
			folder, file := at(fmt.Sprintf("x%d", round%20)), at(fmt.Sprintf("f%d", round%20))
			_ = os.Rename(folder, folder+"-away")
			_ = os.Symlink(outside, folder)
			_ = os.Remove(file)
			_ = os.Symlink(filepath.Join(outside, "secret"), file)
			_ = os.Remove(folder)
			_ = os.Rename(folder+"-away", folder)
			_ = os.Remove(file)
			_ = unix.Mkfifo(file, 0o600)
			_ = os.Remove(file)
			_ = os.WriteFile(file, []byte("own"), 0o644)
		})
		growing, err := os.Create(at("growing"))
		must(t, err)
		defer growing.Close()
		loop(func(round int) { // grows for ever, until the test ends
			_, _ = growing.WriteAt(noise(int64(round), 10_000), int64(round%3000)*10_000)
		})
		whole := make([]byte, 400_000)
		stamped, err := os.Create(at("stamped"))
		must(t, err)
		defer stamped.Close()
		loop(func(round int) { // each write replaces the whole file
			copy(whole, bytes.Repeat([]byte{byte(round)}, len(whole)))
			_, _ = stamped.WriteAt(whole, 0)
		})
		root := ""
		for i := 0; i < 6; i++ {
			if committed := first.publish(store); committed != "same" {
				root = committed
			}
		}
		second.checkout(store, root)
		got, err := os.ReadFile(filepath.Join(second.data, "stamped"))
		must(t, err)
		if strings.HasPrefix(t.Name(), "TestATreeThatChangesWhileItIsCommitted/xfs") && len(got) > 0 && !bytes.Equal(got, bytes.Repeat(got[:1], len(got))) {
			t.Fatal("a file of several moments was committed")
		}
		atomic.StoreInt32(&stop, 1)
		for _, end := range ended {
			<-end
		}
		if committed := first.publish(store); committed != "same" {
			root = committed
		}
		second.checkout(store, root)
		assertSame(t, describe(t, second.data), describe(t, first.data))
		packs, err := os.ReadDir(store)
		must(t, err)
		for _, pack := range packs {
			data, err := os.ReadFile(filepath.Join(store, pack.Name()))
			must(t, err)
			if bytes.Contains(data, secret) {
				t.Fatal("a commit has followed a symbolic link out of the tree")
			}
		}
	})
}

func TestAFileThatMovesDuringACommitIsNotLeftOut(t *testing.T) {
	inMemory(t)
	host, store := newHost(t, t.TempDir(), "data"), t.TempDir()
	const others = 3000
	for _, name := range []string{"a", "m", "z", "z/folder"} {
		must(t, os.Mkdir(filepath.Join(host.data, name), 0o755))
	}
	write(t, filepath.Join(host.data, "z/folder/moving"), []byte("x"))
	for i := 0; i < others; i++ {
		write(t, filepath.Join(host.data, "m", fmt.Sprint(i)), nil)
	}
	host.publish(store)
	random := rand.New(rand.NewSource(1))
	for i := 0; i < 16; i++ {
		wait, moved := time.Duration(random.Intn(8_000))*time.Microsecond, make(chan error)
		from, to := filepath.Join(host.data, "z/folder"), filepath.Join(host.data, "a/folder")
		if i%2 == 1 {
			from, to = to, from
		}
		go func() {
			time.Sleep(wait)
			moved <- os.Rename(from, to)
		}()
		committed := host.commit()
		must(t, <-moved)
		if committed.Files < others+1 {
			t.Fatalf("a commit has %d files, and the tree always has %d", committed.Files, others+1)
		}
		host.publish(store)
	}
}

func TestManySmallCommitsDoNotNeedManyPacks(t *testing.T) {
	inMemory(t)
	volume, store := t.TempDir(), t.TempDir()
	host, second := newHost(t, volume, "data"), newHost(t, volume, "second")
	for i := 0; i < 400; i++ {
		write(t, filepath.Join(host.data, fmt.Sprint(i)), noise(int64(i), 100))
	}
	host.publish(store)
	root, most, named := "", 0, map[string]bool{}
	for i := 0; i < 90; i++ {
		write(t, filepath.Join(host.data, fmt.Sprint(i%40*10)), noise(int64(-i), 3000))
		write(t, filepath.Join(host.data, fmt.Sprint("new", i)), noise(int64(10_000+i), 3000))
		committed := host.commit()
		if committed.Packs > most {
			most = committed.Packs
		}
		for _, pack := range committed.New {
			named[pack.Digest] = true
		}
		for _, digest := range committed.Dropped {
			delete(named, digest)
		}
		root = committed.root()
		host.upload(store, append(committed.New, blob{Digest: root}))
		host.do("accept", "--state", host.state, root)
	}
	if most > 80 || most < 40 {
		t.Fatalf("%d packs were in use at once", most)
	}
	if len(named) > 80 {
		t.Fatalf("%d packs were not dropped", len(named))
	}
	second.checkout(store, root)
	assertSame(t, describe(t, second.data), describe(t, host.data))
	host.publish(store) // it may replace packs once more
	if root := host.publish(store); root != "same" {
		t.Fatalf("a tree that has not changed is committed as %s", root)
	}
}
