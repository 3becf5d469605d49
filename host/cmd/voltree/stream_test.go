package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"releap/host/internal/volume/pack"
	"releap/host/internal/volume/rpc"
)

func TestEachCommandNeedsAFewPacksAtATime(t *testing.T) {
	inMemory(t)
	usual, plenty := pack.AheadBytes, uint64(1<<30)
	pack.AheadBytes = plenty
	volume, store := t.TempDir(), t.TempDir()
	first, second := newHost(t, volume, "first"), newHost(t, volume, "second")
	const files, size, packs = 10, 8 << 20, 5
	for i := 0; i < files; i++ {
		write(t, filepath.Join(first.data, fmt.Sprint(i)), noise(int64(i), size))
	}
	root := first.publish(store)
	pack.AheadBytes = pack.TargetBytes
	t.Cleanup(func() { pack.AheadBytes = usual })
	c := newCaller(t, store, root)
	crashFor(t, c, "voltree-filled", second.checkoutArguments(c, root)...)
	if len(c.fetched) != packs+1 {
		t.Fatalf("%d packs were fetched instead of %d with content and one with segments", len(c.fetched), packs)
	}
	// What was written is not fetched again; what is damaged is.
	write(t, filepath.Join(second.data, "5"), noise(-1, size))
	c = newCaller(t, store, root)
	if _, code, message := c.try(second.checkoutArguments(c, root)...); code != 0 {
		t.Fatalf("the checkout ended with %d: %s", code, message)
	}
	if len(c.fetched) != 2 {
		t.Fatalf("%d packs were fetched instead of one with content and one with segments", len(c.fetched))
	}
	assertSame(t, describe(t, second.data), describe(t, first.data))
	third := newHost(t, volume, "third")
	c = newCaller(t, store, root)
	if _, code, message := c.try(third.checkoutArguments(c, root)...); code != 0 {
		t.Fatalf("the checkout ended with %d: %s", code, message)
	}
	if len(c.fetched) != packs+1 || c.most > 3*pack.TargetBytes {
		t.Fatalf("%d packs were fetched, and %d bytes were in their folder at a time", len(c.fetched), c.most)
	}
	assertSame(t, describe(t, third.data), describe(t, first.data))

	for i := 0; i < files; i++ {
		write(t, filepath.Join(first.data, fmt.Sprint(i)), noise(int64(100+i), size))
	}
	pack.AheadBytes = plenty
	root = first.publish(store)
	pack.AheadBytes = pack.TargetBytes
	c = newCaller(t, store, root)
	if _, code, message := c.try(third.mergeArguments(c, root)...); code != 0 {
		t.Fatalf("the merge ended with %d: %s", code, message)
	}
	if len(c.fetched) != packs+1 || c.most > 3*pack.TargetBytes {
		t.Fatalf("%d packs were fetched, and %d bytes were in their folder at a time", len(c.fetched), c.most)
	}
	assertSame(t, withoutFolderTimes(describe(t, third.data)), withoutFolderTimes(describe(t, first.data)))

	for i := 0; i < files; i++ {
		write(t, filepath.Join(first.data, fmt.Sprint(i)), noise(int64(200+i), size))
	}
	must(t, os.RemoveAll(first.outgoing))
	c = &caller{t: t, store: store, outgoing: first.outgoing}
	committed, code, message := c.try(first.commitArguments()...)
	if code != 0 {
		t.Fatalf("the commit ended with %d: %s", code, message)
	}
	if len(committed.New) != packs+1 || len(c.stored) < packs-1 || c.most > 3*pack.TargetBytes {
		t.Fatalf("%d of %d new packs were stored meanwhile, and %d bytes were in their folder at a time", len(c.stored), len(committed.New), c.most)
	}
	stored := strings.Join(c.stored, " ")
	for _, blob := range append(committed.New, blob{Digest: committed.root()}) {
		if !strings.Contains(stored, strings.TrimPrefix(blob.Digest, "sha256:")) {
			first.upload(store, []rpc.Blob{blob})
		}
	}
	first.do("accept", "--state", first.state, committed.root())
	third.merge(store, committed.root())
	assertSame(t, withoutFolderTimes(describe(t, third.data)), withoutFolderTimes(describe(t, first.data)))
}
