package manifest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand"
	"reflect"
	"strings"
	"testing"
)

func sample(packs *Packs) []Entry {
	one, two := packs.Number(Pack{Digest: sha256.Sum256([]byte("one")), Bytes: 1}), packs.Number(Pack{Digest: sha256.Sum256([]byte("two")), Bytes: 2})
	ref := func(pack uint32, text string) Ref {
		return Ref{Digest: sha256.Sum256([]byte(text)), Pack: pack, Offset: 1 << 30, Length: uint32(len(text))}
	}
	return []Entry{
		{Type: Folder, Mode: 0o1777, Xattrs: EncodeXattrs([]Xattr{{"user.b", []byte{0}}, {"user.a", nil}})},
		{Path: "a", Type: Folder, Mode: 0o700, UID: 65535, GID: 1},
		{Path: "a/\xff", Type: File, Mode: 0o4755, Linked: true, Size: 100, Extents: []Extent{{7, ref(one, "x")}, {90, ref(two, "yyyy")}}, Mtime: Time{-1, 999_999_999}},
		{Path: "a/\xffl", Type: Symlink, Target: "../..\n", Mode: 0o777},
		{Path: "a.b", Type: Link, Link: LinkOf("a/\xff")},
		{Path: "big", Type: File, Size: 1 << 40, Lists: []Ref{ref(two, "list")}, XattrRefs: []Ref{ref(one, "block")}},
		{Path: "f", Type: Fifo},
		{Path: "w", Type: Whiteout},
	}
}

func segment(packs *Packs, entries []Entry) []byte {
	blob := NewBlob(packs)
	for i := range entries {
		blob.Add(&entries[i])
	}
	return blob.Segment()
}

func TestASegmentIsReadAsItWasWritten(t *testing.T) {
	packs := NewPacks()
	entries := sample(packs)
	data := segment(packs, entries)
	got, err := DecodeSegment(data, packs, nil)
	if err != nil || !reflect.DeepEqual(got, entries) {
		t.Fatalf("%v\n got %+v\nwant %+v", err, got, entries)
	}
	// In another process packs have other numbers, and the bytes are the same.
	other := NewPacks()
	other.Number(Pack{Digest: sha256.Sum256([]byte("unrelated"))})
	read, err := DecodeSegment(data, other, nil)
	if err != nil || string(segment(other, read)) != string(data) {
		t.Fatalf("the bytes depend on the numbers of packs: %v", err)
	}
}

func TestADamagedSegmentIsRefused(t *testing.T) {
	packs := NewPacks()
	data := segment(packs, sample(packs))
	random := rand.New(rand.NewSource(1))
	for i := 0; i < 20_000; i++ {
		damaged := append([]byte(nil), data...)
		for n := random.Intn(4); n >= 0; n-- {
			damaged[random.Intn(len(damaged))] = byte(random.Intn(256))
		}
		damaged = damaged[:len(damaged)-random.Intn(3)*random.Intn(len(damaged)/3)]
		entries, err := DecodeSegment(damaged, packs, nil)
		for j := range entries {
			if checkPath(entries[j].Path) != nil || (err == nil && j > 0 && Compare(entries[j-1].Path, entries[j].Path) >= 0) {
				t.Fatalf("accepted the path %q", entries[j].Path)
			}
		}
	}
	for _, path := range []string{"..", "a/..", "../a", "/a", "a/", "a//b", ".", "a/./b", "a\x00", strings.Repeat("n", 256), strings.Repeat("a/", MaxDepth) + "a"} {
		if _, err := DecodeSegment(segment(packs, []Entry{{Path: path, Type: Folder}}), packs, nil); err == nil {
			t.Fatalf("accepted the path %.100q", path)
		}
	}
	twice := []Entry{{Path: "b", Type: Folder}, {Path: "a", Type: Folder}}
	if _, err := DecodeSegment(segment(packs, twice), packs, nil); err == nil {
		t.Fatal("accepted paths out of order")
	}
	last := "b"
	if _, err := DecodeSegment(segment(packs, twice[:1]), packs, &last); err == nil {
		t.Fatal("accepted a path of the segment before")
	}
}

// Another host wrote it: a few bytes of each entry stand for a path of 64 KiB.
func TestASegmentThatWouldTakeMuchMoreMemoryThanItHasBytesIsRefused(t *testing.T) {
	packs := NewPacks()
	long := strings.Repeat(strings.Repeat("a", 250)+"/", 200)
	var entries []Entry
	for i := 0; i < 1000; i++ {
		entries = append(entries, Entry{Path: fmt.Sprintf("%s%04d", long, i), Type: Folder})
	}
	data := segment(packs, entries)
	if len(data) > 100_000 {
		t.Fatalf("the paths are not shared: %d bytes", len(data))
	}
	if _, err := DecodeSegment(data, packs, nil); !errors.Is(err, ErrDamaged) {
		t.Errorf("paths of 50 MB from %d bytes: %v", len(data), err)
	}
	entries = entries[:0]
	for i := 0; i < cutMax+1; i++ {
		entries = append(entries, Entry{Path: fmt.Sprintf("%05d", i), Type: Folder})
	}
	if _, err := DecodeSegment(segment(packs, entries), packs, nil); !errors.Is(err, ErrDamaged) {
		t.Errorf("more entries than a segmenter puts into one: %v", err)
	}
	// What a segmenter puts into segments is read, whatever the paths.
	segmenter, first := Segmenter{}, 0
	for i := range entries {
		entries[i].Path = fmt.Sprintf("%s%04d", long, i)
		if segmenter.Begins(&entries[i]) && i > first {
			if _, err := DecodeSegment(segment(packs, entries[first:i]), packs, nil); err != nil {
				t.Fatal(err)
			}
			first = i
		}
	}
}

func TestAFoldersEntriesFollowIt(t *testing.T) {
	paths := []string{"", "a", "a/a", "a/b", "a/b/c", "a\x01", "a b", "a-", "a.b", "a.b/c", "aa", "b", "\xff"}
	for i := range paths {
		for j := range paths {
			if got := Compare(paths[i], paths[j]); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Fatalf("Compare(%q, %q) = %d", paths[i], paths[j], got)
			}
		}
	}
}

func TestAChangedPathMovesFewCuts(t *testing.T) {
	cuts := func(paths []string) map[string]bool {
		var segmenter Segmenter
		found := map[string]bool{}
		for _, path := range paths {
			if segmenter.Begins(&Entry{Path: path, Type: File}) {
				found[path] = true
			}
		}
		return found
	}
	var paths []string
	for i := 0; i < 20_000; i++ {
		paths = append(paths, fmt.Sprintf("folder/%05d", i))
	}
	before := cuts(paths)
	if len(before) < 40 || len(before) > 160 {
		t.Fatalf("20,000 entries are %d segments", len(before))
	}
	after := cuts(append([]string{"added"}, paths...))
	moved := 0
	for path := range after {
		if !before[path] {
			moved++
		}
	}
	if moved > 3 {
		t.Fatalf("%d segments begin elsewhere because of one more entry", moved)
	}
}
