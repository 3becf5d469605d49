package manifest

import "encoding/binary"

const (
	flagXattrs    = 1 << iota // the block follows
	flagXattrRefs             // references to the block follow
	flagLinked
	flagLists
)

// Encoder appends entries to Bytes.
type Encoder struct {
	Bytes []byte
	// Index gives what a reference says of a pack's number.
	Index    func(pack uint32) uint64
	previous string
}

// Reset begins a new run of entries: the first has its whole path.
func (e *Encoder) Reset() { e.previous = "" }

func (e *Encoder) uint(value uint64) { e.Bytes = binary.AppendUvarint(e.Bytes, value) }

// Entry appends one entry.
func (e *Encoder) Entry(entry *Entry) {
	shared := 0
	for shared < len(e.previous) && shared < len(entry.Path) && e.previous[shared] == entry.Path[shared] {
		shared++
	}
	e.previous = entry.Path
	e.uint(uint64(shared))
	e.uint(uint64(len(entry.Path) - shared))
	e.Bytes = append(e.Bytes, entry.Path[shared:]...)
	e.Bytes = append(e.Bytes, entry.Type)
	if entry.Type == Link {
		e.Bytes = append(e.Bytes, entry.Link[:]...)
		return
	}
	e.uint(uint64(entry.Mode))
	e.uint(uint64(entry.UID))
	e.uint(uint64(entry.GID))
	e.Bytes = binary.AppendVarint(e.Bytes, entry.Mtime.Sec)
	e.uint(uint64(entry.Mtime.Nsec))
	flags := byte(0)
	if len(entry.Xattrs) > 0 {
		flags |= flagXattrs
	}
	if len(entry.XattrRefs) > 0 {
		flags |= flagXattrRefs
	}
	if entry.Linked {
		flags |= flagLinked
	}
	if len(entry.Lists) > 0 {
		flags |= flagLists
	}
	e.Bytes = append(e.Bytes, flags)
	if flags&flagXattrs != 0 {
		e.uint(uint64(len(entry.Xattrs)))
		e.Bytes = append(e.Bytes, entry.Xattrs...)
	}
	if flags&flagXattrRefs != 0 {
		e.refs(entry.XattrRefs)
	}
	switch entry.Type {
	case Symlink:
		e.uint(uint64(len(entry.Target)))
		e.Bytes = append(e.Bytes, entry.Target...)
	case File:
		e.uint(entry.Size)
		if flags&flagLists != 0 {
			e.refs(entry.Lists)
		} else {
			e.Extents(entry.Extents)
		}
	}
}

// Extents appends a count and extents.
func (e *Encoder) Extents(extents []Extent) {
	e.uint(uint64(len(extents)))
	end := uint64(0)
	for i := range extents {
		e.uint(extents[i].Offset - end)
		e.ref(&extents[i].Ref)
		end = extents[i].Offset + uint64(extents[i].Ref.Length)
	}
}

func (e *Encoder) refs(refs []Ref) {
	e.uint(uint64(len(refs)))
	for i := range refs {
		e.ref(&refs[i])
	}
}

func (e *Encoder) ref(ref *Ref) {
	e.Bytes = append(e.Bytes, ref.Digest[:]...)
	e.uint(e.Index(ref.Pack))
	e.uint(ref.Offset)
	e.uint(uint64(ref.Length))
}

// Blob encodes with a table of the packs that it names.
type Blob struct {
	Encoder
	packs *Packs
	table []byte
	index map[uint32]uint64
	count uint64
}

// NewBlob gives an encoder for a segment or a list of extents.
func NewBlob(packs *Packs) *Blob {
	blob := &Blob{packs: packs, index: map[uint32]uint64{}}
	blob.Index = func(pack uint32) uint64 {
		index, ok := blob.index[pack]
		if !ok {
			digest := blob.packs.Get(pack).Digest
			index = uint64(len(blob.index))
			blob.index[pack] = index
			blob.table = append(blob.table, digest[:]...)
		}
		return index
	}
	return blob
}

// Add appends an entry to a segment.
func (b *Blob) Add(entry *Entry) {
	b.Entry(entry)
	b.count++
}

// Count of the entries so far.
func (b *Blob) Count() uint64 { return b.count }

// Segment gives the bytes of the segment, and begins the next.
func (b *Blob) Segment() []byte {
	head := b.head()
	head = binary.AppendUvarint(head, b.count)
	return b.finish(head)
}

// List gives the bytes of a list of extents.
func (b *Blob) List(extents []Extent) []byte {
	b.Extents(extents)
	return b.finish(b.head())
}

func (b *Blob) head() []byte {
	head := make([]byte, 0, len(b.table)+len(b.Bytes)+16)
	head = append(head, Version)
	head = binary.AppendUvarint(head, uint64(len(b.index)))
	return append(head, b.table...)
}

func (b *Blob) finish(head []byte) []byte {
	whole := append(head, b.Bytes...)
	b.Bytes, b.table, b.count = b.Bytes[:0], b.table[:0], 0
	for pack := range b.index {
		delete(b.index, pack)
	}
	b.Reset()
	return whole
}
