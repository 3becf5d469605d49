package commit

import (
	"encoding/binary"
	"sort"

	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/state"
)

// chunkTable finds chunks by digest. It holds a million in about 60 MB.
type chunkTable struct {
	blocks [][]manifest.Ref
	slots  []uint32 // position + 1, or 0
	count  int
}

const blockRefs = 1 << 14

func (t *chunkTable) at(position uint32) *manifest.Ref {
	return &t.blocks[position/blockRefs][position%blockRefs]
}

func (t *chunkTable) find(digest manifest.Digest) *manifest.Ref {
	if t.count == 0 {
		return nil
	}
	mask := uint64(len(t.slots) - 1)
	for slot := binary.LittleEndian.Uint64(digest[:]) & mask; t.slots[slot] != 0; slot = (slot + 1) & mask {
		if ref := t.at(t.slots[slot] - 1); ref.Digest == digest {
			return ref
		}
	}
	return nil
}

// add keeps the first place of a chunk.
func (t *chunkTable) add(ref manifest.Ref) {
	if 4*(t.count+1) > 3*len(t.slots) {
		t.grow()
	}
	if t.find(ref.Digest) != nil {
		return
	}
	if t.count%blockRefs == 0 {
		t.blocks = append(t.blocks, make([]manifest.Ref, 0, blockRefs))
	}
	last := &t.blocks[len(t.blocks)-1]
	*last = append(*last, ref)
	t.place(ref.Digest, uint32(t.count))
	t.count++
}

func (t *chunkTable) place(digest manifest.Digest, position uint32) {
	mask := uint64(len(t.slots) - 1)
	slot := binary.LittleEndian.Uint64(digest[:]) & mask
	for t.slots[slot] != 0 {
		slot = (slot + 1) & mask
	}
	t.slots[slot] = position + 1
}

func (t *chunkTable) grow() {
	size := 2 * len(t.slots)
	if size < 1024 {
		size = 1024
	}
	t.slots = make([]uint32, size)
	for position := 0; position < t.count; position++ {
		t.place(t.at(uint32(position)).Digest, uint32(position))
	}
}

// inodeTable finds records of the base by inode, for files that have another path now: sorted, 16 bytes each.
type inodeTable struct {
	rows []inodeRow
	base *state.Index
	// The segment that was read last: files that move together were together.
	cached  uint32
	records []state.Record
}

type inodeRow struct {
	ino     uint64
	segment uint32
}

// known is what is read of the whole base once a commit finds something new.
type known struct {
	chunks chunkTable
	inodes inodeTable
	worn   map[uint32]bool // packs that must not be named again
	loaded bool
}

func (k *known) load(index *state.Index) error {
	if k.loaded {
		return nil
	}
	k.loaded = true
	k.inodes.base = index
	err := index.Each(func(at state.Position, record *state.Record) error {
		record.EachRef(func(ref *manifest.Ref) {
			if !k.worn[ref.Pack] {
				k.chunks.add(*ref)
			}
		})
		if record.Type == manifest.File && record.Size > 0 {
			k.inodes.rows = append(k.inodes.rows, inodeRow{record.Ino, at.Segment})
		}
		return nil
	})
	rows := k.inodes.rows
	sort.Slice(rows, func(i, j int) bool { return rows[i].ino < rows[j].ino })
	return err
}

// find gives the file of the base that has an inode now seen elsewhere; nil if there is none.
func (t *inodeTable) find(ino uint64) (*state.Record, error) {
	row := sort.Search(len(t.rows), func(i int) bool { return t.rows[i].ino >= ino })
	if row == len(t.rows) || t.rows[row].ino != ino {
		return nil, nil
	}
	if segment := t.rows[row].segment; t.records == nil || t.cached != segment {
		records, err := t.base.Segment(segment)
		if err != nil {
			return nil, err
		}
		t.cached, t.records = segment, records
	}
	for i := range t.records {
		if t.records[i].Ino == ino && t.records[i].Type == manifest.File {
			return &t.records[i], nil
		}
	}
	return nil, nil
}
