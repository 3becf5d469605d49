package manifest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrDamaged: bytes that are no segment, list or index.
var ErrDamaged = errors.New("a manifest is damaged")

// Decoder reads entries from Bytes.
type Decoder struct {
	Bytes []byte
	// Pack gives the number of the pack that a reference names.
	Pack     func(index uint64) (uint32, bool)
	previous []byte
	err      error
}

// Reset begins a new run of entries.
func (d *Decoder) Reset() { d.previous = d.previous[:0] }

// Err is the first error.
func (d *Decoder) Err() error { return d.err }

func (d *Decoder) fail() {
	if d.err == nil {
		d.err = ErrDamaged
	}
	d.Bytes = nil
}

// Uint reads a number of at most max.
func (d *Decoder) Uint(max uint64) uint64 {
	value, n := binary.Uvarint(d.Bytes)
	if n <= 0 || value > max {
		d.fail()
		return 0
	}
	d.Bytes = d.Bytes[n:]
	return value
}

// Int reads a signed number.
func (d *Decoder) Int() int64 {
	value, n := binary.Varint(d.Bytes)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.Bytes = d.Bytes[n:]
	return value
}

// Take gives the next n bytes, which are those of Bytes itself.
func (d *Decoder) Take(n uint64) []byte {
	if n > uint64(len(d.Bytes)) {
		d.fail()
		return nil
	}
	taken := d.Bytes[:n:n]
	d.Bytes = d.Bytes[n:]
	return taken
}

// Byte reads one byte.
func (d *Decoder) Byte() byte {
	taken := d.Take(1)
	if taken == nil {
		return 0
	}
	return taken[0]
}

// Entry reads one entry. Its slices are its own.
func (d *Decoder) Entry(entry *Entry) error {
	*entry = Entry{}
	shared := d.Uint(uint64(len(d.previous)))
	rest := d.Take(d.Uint(MaxPath))
	if d.err != nil {
		return d.err
	}
	d.previous = append(d.previous[:shared], rest...)
	entry.Path = string(d.previous)
	if err := checkPath(entry.Path); err != nil {
		d.fail()
		return err
	}
	entry.Type = d.Byte()
	switch entry.Type {
	case Folder, File, Symlink, Fifo, Whiteout:
	case Link:
		copy(entry.Link[:], d.Take(uint64(len(entry.Link))))
		return d.err
	default:
		d.fail()
	}
	entry.Mode = uint32(d.Uint(0o7777))
	entry.UID = uint32(d.Uint(math.MaxUint32))
	entry.GID = uint32(d.Uint(math.MaxUint32))
	entry.Mtime.Sec = d.Int()
	entry.Mtime.Nsec = uint32(d.Uint(999_999_999))
	flags := d.Byte()
	entry.Linked = flags&flagLinked != 0
	if flags&flagXattrs != 0 {
		entry.Xattrs = append([]byte(nil), d.Take(d.Uint(InlineXattrs))...)
	}
	if flags&flagXattrRefs != 0 {
		entry.XattrRefs = d.refs()
	}
	switch entry.Type {
	case Symlink:
		entry.Target = string(d.Take(d.Uint(MaxTarget)))
	case File:
		entry.Size = d.Uint(math.MaxInt64)
		if flags&flagLists != 0 {
			entry.Lists = d.refs()
		} else {
			entry.Extents = d.extents(nil, entry.Size)
		}
	}
	return d.err
}

// extents appends a count and extents, each after the one before.
func (d *Decoder) extents(extents []Extent, size uint64) []Extent {
	count := d.Uint(uint64(len(d.Bytes))) // each takes more than a byte
	if extents == nil && count > 0 {
		// The count is another host's: memory is taken for what there is.
		extents = make([]Extent, 0, 1)
		if count <= ListExtents {
			extents = make([]Extent, 0, count)
		}
	}
	end := uint64(0)
	for ; count > 0 && d.err == nil; count-- {
		extent := Extent{Offset: end + d.Uint(size-end), Ref: d.ref()}
		if d.err != nil || uint64(extent.Ref.Length) > size-extent.Offset {
			d.fail()
			break
		}
		if len(extents) > 0 {
			last := &extents[len(extents)-1]
			if extent.Offset < last.Offset+uint64(last.Ref.Length) {
				d.fail()
				break
			}
		}
		end = extent.Offset + uint64(extent.Ref.Length)
		extents = append(extents, extent)
	}
	return extents
}

func (d *Decoder) refs() []Ref {
	count := d.Uint(uint64(len(d.Bytes)) / 35)
	if count == 0 {
		return nil
	}
	refs := make([]Ref, 0, count)
	for ; count > 0 && d.err == nil; count-- {
		refs = append(refs, d.ref())
	}
	return refs
}

func (d *Decoder) ref() Ref {
	var ref Ref
	copy(ref.Digest[:], d.Take(uint64(len(ref.Digest))))
	number, ok := d.Pack(d.Uint(math.MaxUint32))
	if !ok {
		d.fail()
	}
	ref.Pack = number
	ref.Offset = d.Uint(math.MaxInt64)
	ref.Length = uint32(d.Uint(maxChunkBytes))
	return ref
}

// head reads the version and the table of packs.
func (d *Decoder) head(packs *Packs) {
	if version := d.Byte(); version != Version {
		if d.err == nil {
			d.err = fmt.Errorf("a manifest of version %d: this program knows version %d", version, Version)
		}
		d.Bytes = nil
		return
	}
	table := make([]uint32, 0, 8)
	for count := d.Uint(uint64(len(d.Bytes)) / 32); count > 0; count-- {
		var digest Digest
		copy(digest[:], d.Take(uint64(len(digest))))
		table = append(table, packs.Number(Pack{Digest: digest}))
	}
	d.Pack = func(index uint64) (uint32, bool) {
		if index >= uint64(len(table)) {
			return 0, false
		}
		return table[index], true
	}
}

// DecodeSegment reads the entries of a segment. Paths come in order, all after the path `after` unless it is the first segment.
func DecodeSegment(data []byte, packs *Packs, after *string) ([]Entry, error) {
	d := &Decoder{Bytes: data}
	d.head(packs)
	// An entry of a few bytes can have a path of 64 KiB, most of which it shares with the one before: without the limits that a
	// Segmenter keeps to, another host's segment could take gigabytes.
	count := d.Uint(cutMax)
	paths := 0
	entries := make([]Entry, 0, cutMin)
	for ; count > 0 && d.err == nil; count-- {
		var entry Entry
		if err := d.Entry(&entry); err != nil {
			return nil, err
		}
		if after != nil && Compare(*after, entry.Path) >= 0 {
			return nil, ErrDamaged
		}
		if paths += len(entry.Path); paths > cutWeight {
			return nil, ErrDamaged
		}
		after = &entry.Path
		entries = append(entries, entry)
	}
	if d.err != nil {
		return nil, d.err
	}
	if len(d.Bytes) > 0 {
		return nil, ErrDamaged
	}
	return entries, nil
}

// DecodeList appends the extents of a list.
func DecodeList(data []byte, packs *Packs, extents []Extent, size uint64) ([]Extent, error) {
	d := &Decoder{Bytes: data}
	d.head(packs)
	if d.err == nil {
		if extents == nil {
			extents = []Extent{}
		}
		extents = d.extents(extents, size)
	}
	if d.err == nil && len(d.Bytes) > 0 {
		d.fail()
	}
	return extents, d.err
}
