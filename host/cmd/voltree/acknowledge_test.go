package main

import (
	"os"
	"path/filepath"
	"testing"
)

// lateWriter is a second host with a file that a merge has replaced while a sandbox had it open, and wrote to it afterwards.
func lateWriter(t *testing.T, volume string) (first, second *host, store string) {
	t.Helper()
	first, second, store = pair(t, volume, func(root string) { write(t, filepath.Join(root, "file"), []byte("base")) })
	open, err := os.OpenFile(filepath.Join(second.data, "file"), os.O_RDWR, 0)
	must(t, err)
	defer open.Close()
	write(t, filepath.Join(first.data, "file"), []byte("theirs"))
	merged := second.merge(store, first.publish(store))
	assertSame(t, merged.kinds(), "")
	_, err = open.WriteAt([]byte("late"), 0)
	must(t, err)
	return first, second, store
}

func TestALateWriteIsReportedUntilItsCommitIsAccepted(t *testing.T) {
	onFileSystems(t, func(t *testing.T, volume string) {
		first, second, store := lateWriter(t, volume)
		want := "late-write file file.conflict-second"
		for _, step := range []string{"voltree-restored-aside", "voltree-scanned", "voltree-offered"} {
			crash(t, step, second.commitArguments()...)
		}
		// The answer of the first is lost.
		for range []int{1, 2} {
			answer := second.commit()
			assertSame(t, answer.kinds(), want)
		}
		// The head has moved meanwhile.
		write(t, filepath.Join(first.data, "other"), []byte("theirs"))
		root := first.publish(store)
		for range []int{1, 2} {
			answer := second.merge(store, root)
			assertSame(t, answer.kinds(), want)
		}
		assertSame(t, read(t, filepath.Join(second.data, "file.conflict-second")), "late")
		second.publish(store)
		write(t, filepath.Join(second.data, "later"), []byte("mine"))
		answer := second.commit()
		assertSame(t, answer.kinds(), "")
	})
}

func TestAMergeReportsTheConflictsOfOneWhoseAnswerIsLost(t *testing.T) {
	onFileSystems(t, func(t *testing.T, volume string) {
		first, second, store := pair(t, volume, func(root string) { write(t, filepath.Join(root, "file"), []byte("base")) })
		write(t, filepath.Join(second.data, "file"), []byte("mine"))
		write(t, filepath.Join(first.data, "file"), []byte("theirs"))
		root := first.publish(store)
		c := newCaller(t, store, root)
		crashFor(t, c, "voltree-merged", second.mergeArguments(c, root)...)
		var merged answer
		for _, content := range []string{"newer", "newest"} {
			write(t, filepath.Join(first.data, "other"), []byte(content))
			merged = second.merge(store, first.publish(store))
			assertSame(t, merged.kinds(), "changed file file.conflict-second")
		}
		head := second.publish(store)
		merged = first.merge(store, head)
		assertSame(t, merged.kinds(), "")
		write(t, filepath.Join(first.data, "other"), []byte("after all"))
		merged = second.merge(store, first.publish(store))
		assertSame(t, merged.kinds(), "")
	})
}

func TestAnInterruptedMergeReportsWhatItHasBroughtBack(t *testing.T) {
	onFileSystems(t, func(t *testing.T, volume string) {
		first, second, store := pair(t, volume, func(root string) { write(t, filepath.Join(root, "file"), []byte("base")) })
		write(t, filepath.Join(first.data, "file"), []byte("theirs"))
		root := first.publish(store)
		open, err := os.OpenFile(filepath.Join(second.data, "file"), os.O_RDWR, 0)
		must(t, err)
		defer open.Close()
		c := newCaller(t, store, root)
		crashFor(t, c, "voltree-all-applied", second.mergeArguments(c, root)...)
		_, err = open.WriteAt([]byte("late"), 0)
		must(t, err)
		c = newCaller(t, store, root)
		crashFor(t, c, "voltree-restored-aside", second.mergeArguments(c, root)...)
		merged := second.merge(store, root)
		assertSame(t, merged.kinds(), "changed file file.conflict-second")
		assertSame(t, read(t, filepath.Join(second.data, "file.conflict-second")), "late")
	})
}
