// Package manifest is the format of what a commit of a volume has recorded.
//
// The root blob is JSON (type Root). It lists segments: chunks that hold the entries of the tree, sorted by path (Compare), about
// 256 in each. Where a segment ends depends on the paths alone, so a changed file changes one segment. Content, segments and
// long lists of extents are chunks, named by the SHA-256 of their bytes and found in packs, which are blobs that hold nothing but
// chunks, one after the other.
//
// A segment is: the format's version (1 byte), the table of packs that it names (a count, then 32 bytes each), the number of its
// entries, its entries. Numbers are unsigned varints where nothing else is said. An entry is: how many bytes of its path are
// those of the path before it, the length of the rest, the rest, its type (1 byte). A hard link to an earlier entry ends with the
// 16 bytes that name it (LinkOf). All others have mode, uid, gid, mtime in seconds (signed) and nanoseconds, flags (1 byte);
// extended attributes (their block, or references to its chunks); for symbolic links the target; for files the size and the extents.
// A reference is: SHA-256 (32 bytes), index in the table of packs, offset in the pack, length. An extent is: the distance from the end
// of the one before, and a reference. Between extents are holes. Files of more than 4096 extents have references to lists of them
// instead: the version, a table of packs, a count, extents; the first of each list has its distance from the start of the file.
package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Version of segments and lists of extents.
const Version = 1

// Types of entries.
const (
	Folder   byte = 'd'
	File     byte = 'f'
	Symlink  byte = 'l'
	Fifo     byte = 'p'
	Whiteout byte = 'w' // a character device 0:0, which overlay file systems make without privileges
	Link     byte = 'h' // another name of an earlier file
)

// Limits of a tree.
const (
	MaxPath       = 64 * 1024
	MaxDepth      = 2048
	MaxName       = 255
	MaxXattrs     = 8 * 1024 * 1024 // of one entry, encoded
	InlineXattrs  = 2048
	ChunkBytes    = 1024 * 1024
	ListExtents   = 4096 // of one list; a file with more extents has lists
	MaxTarget     = 4096
	maxChunkBytes = 64 * 1024 * 1024
)

// Digest is a SHA-256.
type Digest [sha256.Size]byte

func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// ParseDigest reads 64 hexadecimal digits, perhaps after `sha256:`.
func ParseDigest(text string) (Digest, error) {
	var digest Digest
	hexadecimal := strings.TrimPrefix(text, "sha256:")
	if len(hexadecimal) != 2*len(digest) || strings.ToLower(hexadecimal) != hexadecimal {
		return digest, fmt.Errorf("%.100q is no SHA-256 in lower-case hexadecimal digits", text)
	}
	if _, err := hex.Decode(digest[:], []byte(hexadecimal)); err != nil {
		return digest, fmt.Errorf("%.100q is no SHA-256 in lower-case hexadecimal digits", text)
	}
	return digest, nil
}

// Ref says where a chunk is.
type Ref struct {
	Digest Digest
	Pack   uint32 // number in Packs
	Length uint32
	Offset uint64
}

// Extent is data of a file.
type Extent struct {
	Offset uint64 // in the file
	Ref    Ref
}

// Time is a file's mtime.
type Time struct {
	Sec  int64
	Nsec uint32
}

// LinkOf names a file that has several names by the first of them.
type LinkID [16]byte

func LinkOf(path string) LinkID {
	var id LinkID
	sum := sha256.Sum256([]byte(path))
	copy(id[:], sum[:])
	return id
}

// Entry is a folder, a file or another name of one. The root of the tree has the path "".
type Entry struct {
	Path  string
	Type  byte
	Mode  uint32 // permission bits, set-user-ID, set-group-ID and sticky
	UID   uint32
	GID   uint32
	Mtime Time
	// Linked: later entries (type Link) are other names of it.
	Linked bool
	Link   LinkID
	// Xattrs is the block of EncodeXattrs if it is short; XattrRefs are its chunks otherwise.
	Xattrs    []byte
	XattrRefs []Ref
	Target    string
	Size      uint64
	Extents   []Extent
	// Lists are the chunks that hold Extents, if these are many. Extents is nil then until they are read.
	Lists []Ref
}

// DataBytes is the length of a file's data without holes.
func (e *Entry) DataBytes() uint64 {
	var sum uint64
	for i := range e.Extents {
		sum += uint64(e.Extents[i].Ref.Length)
	}
	return sum
}

// EachRef calls visit for each chunk that the entry names.
func (e *Entry) EachRef(visit func(*Ref)) {
	for i := range e.XattrRefs {
		visit(&e.XattrRefs[i])
	}
	for i := range e.Lists {
		visit(&e.Lists[i])
	}
	for i := range e.Extents {
		visit(&e.Extents[i].Ref)
	}
}

// SameAttributes compares owner, mode and extended attributes.
func SameAttributes(a, b *Entry) bool {
	return a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && SameXattrs(a, b)
}

// SameXattrs compares extended attributes.
func SameXattrs(a, b *Entry) bool {
	return string(a.Xattrs) == string(b.Xattrs) && sameChunks(a.XattrRefs, b.XattrRefs)
}

// SameContent compares what a file or link holds. Both must have their Extents.
func SameContent(a, b *Entry) bool {
	if a.Type != b.Type || a.Size != b.Size || a.Target != b.Target || len(a.Extents) != len(b.Extents) {
		return false
	}
	for i := range a.Extents {
		if a.Extents[i].Offset != b.Extents[i].Offset || a.Extents[i].Ref.Digest != b.Extents[i].Ref.Digest {
			return false
		}
	}
	return true
}

// Same compares all but the places of chunks.
func Same(a, b *Entry) bool {
	if a.Type == Link || b.Type == Link {
		return a.Type == b.Type && a.Link == b.Link
	}
	return SameContent(a, b) && SameAttributes(a, b) && a.Mtime == b.Mtime && a.Linked == b.Linked
}

func sameChunks(a, b []Ref) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Digest != b[i].Digest {
			return false
		}
	}
	return true
}

// Compare sorts paths so that a folder's entries follow it: by name, folder by folder.
func Compare(a, b string) int {
	shorter := len(a)
	if len(b) < shorter {
		shorter = len(b)
	}
	for i := 0; i < shorter; i++ {
		if a[i] == b[i] {
			continue
		}
		if a[i] == '/' || (b[i] != '/' && a[i] < b[i]) {
			return -1
		}
		return 1
	}
	return len(a) - len(b)
}

var errPath = errors.New("a manifest has an impossible path")

// checkPath refuses what could lead out of the tree.
func checkPath(path string) error {
	if path == "" {
		return nil
	}
	if len(path) > MaxPath || strings.IndexByte(path, 0) >= 0 {
		return errPath
	}
	for depth := 1; ; depth++ {
		name, rest, more := strings.Cut(path, "/")
		if name == "" || name == "." || name == ".." || len(name) > MaxName || depth > MaxDepth {
			return errPath
		}
		if !more {
			return nil
		}
		path = rest
	}
}
