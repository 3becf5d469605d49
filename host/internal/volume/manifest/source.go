package manifest

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
)

const rootMaxBytes = 256 * 1024 * 1024

// Chunks reads chunks, and verifies them.
type Chunks interface {
	Read(ref *Ref, buffer []byte) ([]byte, error)
}

// Source reads the entries of a manifest.
type Source struct {
	Root   *Root
	Blob   Pack
	packs  *Packs
	chunks Chunks
	refs   []Ref
	last   *string
}

// OpenSource reads the root blob in a file.
func OpenSource(path string, packs *Packs, chunks Chunks) (*Source, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, rootMaxBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > rootMaxBytes {
		return nil, fmt.Errorf("%s has more than %d bytes", path, rootMaxBytes)
	}
	root, err := DecodeRoot(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s := &Source{Root: root, Blob: Pack{Digest: sha256.Sum256(data), Bytes: uint64(len(data))}, packs: packs, chunks: chunks}
	numbers := make([]uint32, 0, len(root.Packs))
	for _, row := range root.Packs {
		digest, err := ParseDigest(row.Digest)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, packs.Number(Pack{Digest: digest, Bytes: row.Bytes}))
	}
	for _, segment := range root.Segments {
		digest, err := ParseDigest(segment.Digest)
		if err != nil {
			return nil, err
		}
		s.refs = append(s.refs, Ref{Digest: digest, Pack: numbers[segment.Pack], Offset: segment.Offset, Length: segment.Length})
	}
	return s, nil
}

// Segment reads the entries of a segment. Segments are read in order, from 0.
func (s *Source) Segment(number int) ([]Entry, error) {
	if number == 0 {
		s.last = nil
	}
	data, err := s.chunks.Read(&s.refs[number], nil)
	if err != nil {
		return nil, err
	}
	entries, err := DecodeSegment(data, s.packs, s.last)
	if err != nil {
		return nil, err
	}
	if len(entries) > 0 {
		s.last = &entries[len(entries)-1].Path
	}
	return entries, nil
}

// SegmentAlone reads the entries of any segment. The order of segments is not verified.
func (s *Source) SegmentAlone(number int) ([]Entry, error) {
	data, err := s.chunks.Read(&s.refs[number], nil)
	if err != nil {
		return nil, err
	}
	return DecodeSegment(data, s.packs, nil)
}

// SegmentRef says where a segment is.
func (s *Source) SegmentRef(number int) *Ref { return &s.refs[number] }

// Extents reads the lists of a file that has them, and gives their places.
func (s *Source) Extents(entry *Entry) ([]Ref, error) {
	if entry.Lists == nil {
		return nil, nil
	}
	lists := entry.Lists
	var extents []Extent
	for i := range lists {
		data, err := s.chunks.Read(&lists[i], nil)
		if err != nil {
			return nil, err
		}
		if extents, err = DecodeList(data, s.packs, extents, entry.Size); err != nil {
			return nil, err
		}
	}
	entry.Extents, entry.Lists = extents, nil
	return lists, nil
}

// Xattrs gives the block of an entry's extended attributes, wherever it is.
func (s *Source) Xattrs(entry *Entry) ([]byte, error) { return ReadXattrs(entry, s.chunks) }

// ReadXattrs is Source.Xattrs with chunks from elsewhere.
func ReadXattrs(entry *Entry, chunks Chunks) ([]byte, error) {
	if entry.XattrRefs == nil {
		return entry.Xattrs, nil
	}
	var block []byte
	for i := range entry.XattrRefs {
		chunk, err := chunks.Read(&entry.XattrRefs[i], nil)
		if err != nil {
			return nil, err
		}
		if block = append(block, chunk...); len(block) > MaxXattrs {
			return nil, ErrDamaged
		}
	}
	return block, nil
}

// Chunk reads content into buffer, or into a longer one.
func (s *Source) Chunk(ref *Ref, buffer []byte) ([]byte, error) { return s.chunks.Read(ref, buffer) }
