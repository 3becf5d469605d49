package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestAMergeBringsOneOfEverything(t *testing.T) {
	onFileSystems(t, func(t *testing.T, volume string) {
		first, second, store := pair(t, volume, func(root string) { write(t, filepath.Join(root, "before"), nil) })
		plant(t, first.data)
		// More names of attributes than the kernel lists at once, where the file system has them.
		many := filepath.Join(first.data, "before")
		for i := 0; i < 400; i++ {
			if unix.Setxattr(many, fmt.Sprintf("user.%s%d", strings.Repeat("x", 200), i), nil, 0) != nil {
				break
			}
		}
		list := make([]byte, 1<<20)
		if _, err := unix.Listxattr(many, list[:1<<16]); err == nil {
			must(t, os.Remove(many)) // it is as any other here
		} else {
			defer func() { _ = os.Remove(many) }()
		}
		root := first.publish(store)
		if merged := second.merge(store, root); len(merged.Conflicts) != 0 {
			t.Fatalf("conflicts %v", merged.Conflicts)
		}
		_ = os.Remove(many)
		_ = os.Remove(filepath.Join(second.data, "before"))
		want, got := withoutFolderTimes(describe(t, first.data)), withoutFolderTimes(describe(t, second.data))
		assertSame(t, got, want)
	})
}

func TestAMergeStaysInATreeWhoseFoldersBecomeLinks(t *testing.T) {
	onFileSystems(t, func(t *testing.T, volume string) {
		const folders = 12
		first, second, store := pair(t, volume, func(root string) {
			for i := 0; i < folders; i++ {
				must(t, os.MkdirAll(filepath.Join(root, fmt.Sprint(i), "sub"), 0o755))
				for j := 0; j < 8; j++ {
					write(t, filepath.Join(root, fmt.Sprint(i), "sub", fmt.Sprint(j)), []byte("base"))
				}
			}
		})
		outside := filepath.Join(volume, "outside")
		must(t, os.MkdirAll(filepath.Join(outside, "sub"), 0o755))
		for j := 0; j < 8; j++ {
			write(t, filepath.Join(outside, "sub", fmt.Sprint(j)), []byte("of the host"))
		}
		before := describe(t, outside)
		var stop int32
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for i := 0; atomic.LoadInt32(&stop) == 0; i++ {
				folder := filepath.Join(second.data, fmt.Sprint(i%folders))
				_ = os.Rename(folder, folder+"-away")
				_ = os.Symlink(outside, folder)
				_ = os.Remove(folder)
				_ = os.Rename(folder+"-away", folder)
				time.Sleep(200 * time.Microsecond)
			}
		}()
		head := ""
		for round := 0; round < 5; round++ {
			for i := 0; i < folders; i++ {
				folder := filepath.Join(first.data, fmt.Sprint(i), "sub")
				write(t, filepath.Join(folder, "0"), []byte(fmt.Sprint("theirs ", round)))
				write(t, filepath.Join(folder, fmt.Sprint("added", round)), []byte("theirs"))
				_ = os.Remove(filepath.Join(folder, fmt.Sprint(round+1)))
				_ = os.Chmod(filepath.Join(folder, "7"), os.FileMode(0o600+round))
			}
			head = first.publish(store)
			// One that fails because all changes too fast is repeated.
			if _, _, code, message := second.tryMerge(store, head); code != 0 && code != 1 {
				t.Fatalf("a merge ended with %d: %s", code, message)
			}
		}
		atomic.StoreInt32(&stop, 1)
		<-ended
		assertSame(t, describe(t, outside), before)
		second.merge(store, head)
		first.head, second.head = head, head
		exchange(t, store, &head, second, first)
		for i := 0; i < folders; i++ {
			if got := read(t, filepath.Join(second.data, fmt.Sprint(i), "sub/0")); got != "theirs 4" {
				t.Fatalf("folder %d has %q instead of what was committed", i, got)
			}
		}
	})
}
