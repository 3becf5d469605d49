package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"releap/host/internal/hosttest"
)

// powerFailure leaves of a volume what its disk has: all of XFS's log, and no data that waits in memory to be written.
func powerFailure(t *testing.T, mount string) {
	t.Helper()
	const shutdown, logFlush = 0x8004587d, 1 // XFS_IOC_GOINGDOWN, XFS_FSOP_GOING_FLAGS_LOGFLUSH
	fd, err := unix.Open(mount, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	err = unix.IoctlSetPointerInt(fd, shutdown, logFlush)
	unix.Close(fd)
	must(t, err)
	command(t, "umount", mount)
	// Of a copy: mount namespaces that other programs have made meanwhile keep the shut-down file system, and Linux would mount that
	// one again from the same image.
	folder := filepath.Dir(mount)
	left := filepath.Join(folder, "left")
	command(t, "cp", "--sparse=always", filepath.Join(folder, "image"), left)
	command(t, "mount", "-o", "loop,nouuid,nosuid,nodev", left, mount)
}

func TestAPowerFailureDuringAMergeLeavesEachFileAsItWasOrAsItIsMerged(t *testing.T) {
	hosttest.NeedsRoot(t, "mounts a file system")
	for _, step := range []string{"voltree-swapped", "voltree-all-applied"} {
		t.Run(step, func(t *testing.T) {
			base, theirs := noise(1, 3<<20), noise(2, 3<<20)
			mount := xfs(t, "1g")
			first, second, store := newHost(t, t.TempDir(), "first"), newHost(t, mount, "second"), t.TempDir()
			names := []string{"a", "b", "c"}
			for _, name := range names {
				write(t, filepath.Join(first.data, name), base)
			}
			second.checkout(store, first.publish(store))
			sync(t, mount)
			for _, name := range names {
				write(t, filepath.Join(first.data, name), theirs)
			}
			root := first.publish(store)
			c := newCaller(t, store, root)
			defer os.RemoveAll(c.incoming)
			crashFor(t, c, step, second.mergeArguments(c, root)...)
			powerFailure(t, mount)
			for _, name := range names {
				found := []byte(read(t, filepath.Join(second.data, name)))
				if !bytes.Equal(found, base) && !bytes.Equal(found, theirs) {
					t.Errorf("%s is neither what it was nor what it is to be: %d bytes, %d of them zeros", name, len(found), bytes.Count(found, []byte{0}))
				}
			}
			merged := second.merge(store, root)
			assertSame(t, merged.kinds(), "")
			for _, name := range names {
				if read(t, filepath.Join(second.data, name)) != string(theirs) {
					t.Errorf("%s was not merged", name)
				}
			}
		})
	}
}

// A sandbox writes while a commit reads.
func TestWhatACommitHasReadIsOnTheDisk(t *testing.T) {
	hosttest.NeedsRoot(t, "mounts a file system")
	mount := xfs(t, "1g")
	h, other, store := newHost(t, mount, "first"), newHost(t, t.TempDir(), "second"), t.TempDir()
	// Its content takes the scan a while, so that the log is written to meanwhile.
	write(t, filepath.Join(h.data, "a"), noise(3, 3<<20))
	path := filepath.Join(h.data, "log")
	write(t, path, nil)
	begun, stop, stopped := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		for line := 0; err == nil; line++ {
			if line == 1 {
				close(begun)
			}
			select {
			case <-stop:
				stopped <- file.Close()
				return
			case <-time.After(time.Millisecond):
				_, err = fmt.Fprintf(file, "%0510d\n", line)
			}
		}
		stopped <- err
	}()
	// A busy machine may let a whole commit go by before the first line.
	select {
	case <-begun:
	case err := <-stopped:
		t.Fatal(err)
	}
	result := h.commit()
	close(stop)
	must(t, <-stopped)
	root := result.root()
	h.upload(store, append(result.New, blob{Digest: root}))
	powerFailure(t, mount)
	other.checkout(store, root)
	committed, found := read(t, filepath.Join(other.data, "log")), read(t, path)
	if committed == "" {
		t.Fatal("the commit has nothing of what was written")
	}
	if !strings.HasPrefix(found, committed) {
		t.Errorf("the commit has %d bytes, which are not the first of the %d on the disk", len(committed), len(found))
	}
}

func sync(t *testing.T, mount string) {
	t.Helper()
	fd, err := unix.Open(mount, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Syncfs(fd))
}
