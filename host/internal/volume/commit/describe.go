package commit

import (
	"crypto/sha256"
	"fmt"
	"sort"

	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/pack"
	"releap/host/internal/volume/state"
)

// describe makes the segments of the new index, and writes those that the base does not have. All packs with content are whole.
func (c *committer) describe(next *state.Base, s *scan) error {
	index, err := c.state.OpenIndex(next, c.packs)
	if err != nil {
		return err
	}
	defer index.Close()
	d := describer{base: c.base, worn: s.worn, chunks: map[manifest.Digest]manifest.Ref{}, packs: c.packs, writer: c.writer, used: map[uint32]bool{}}
	if err := d.know(c.base); err != nil {
		return err
	}
	for _, row := range next.IndexPacks {
		digest, err := manifest.ParseDigest(row.Digest)
		if err != nil {
			return err
		}
		d.used[c.packs.Number(manifest.Pack{Digest: digest, Bytes: row.Bytes})] = true
	}
	// Segments name lists, so these must be in whole packs first.
	var lists map[string][]manifest.Ref
	if s.hasLists {
		if lists, err = d.lists(index); err != nil {
			return err
		}
	}
	segments, err := d.segments(index, s.segments, lists)
	if err != nil {
		return err
	}
	return d.finish(next, segments)
}

type describer struct {
	chunks map[manifest.Digest]manifest.Ref
	packs  *manifest.Packs
	writer *pack.Writer
	used   map[uint32]bool
	known  []manifest.Ref // lists, in order
	base   *state.Base
	worn   map[uint32]bool
	old    []manifest.Ref // segments of the base
}

// know takes the segments and lists of the base.
func (d *describer) know(base *state.Base) error {
	numbers := make([]uint32, 0, len(base.Root.Packs))
	for _, row := range base.Root.Packs {
		digest, err := manifest.ParseDigest(row.Digest)
		if err != nil {
			return err
		}
		numbers = append(numbers, d.packs.Number(manifest.Pack{Digest: digest, Bytes: row.Bytes}))
	}
	for i, chunks := range [][]state.Chunk{base.Root.Segments, base.Lists} {
		for _, chunk := range chunks {
			digest, err := manifest.ParseDigest(chunk.Digest)
			if err != nil {
				return err
			}
			if int(chunk.Pack) >= len(numbers) {
				return manifest.ErrDamaged
			}
			ref := manifest.Ref{Digest: digest, Pack: numbers[chunk.Pack], Offset: chunk.Offset, Length: chunk.Length}
			if !d.worn[ref.Pack] {
				d.chunks[digest] = ref
			}
			if i == 0 {
				d.old = append(d.old, ref)
			}
		}
	}
	return nil
}

func (d *describer) store(data []byte) (manifest.Ref, error) {
	digest := manifest.Digest(sha256.Sum256(data))
	if ref, ok := d.chunks[digest]; ok {
		return ref, nil
	}
	ref, err := d.writer.Add(digest, data)
	if err == nil {
		d.chunks[digest] = ref
	}
	return ref, err
}

// lists stores the extents of files that have very many, by path.
func (d *describer) lists(index *state.Index) (map[string][]manifest.Ref, error) {
	lists := map[string][]manifest.Ref{}
	err := index.Each(func(_ state.Position, record *state.Record) error {
		if len(record.Extents) <= manifest.ListExtents {
			return nil
		}
		for from := 0; from < len(record.Extents); from += manifest.ListExtents {
			to := from + manifest.ListExtents
			if to > len(record.Extents) {
				to = len(record.Extents)
			}
			ref, err := d.store(manifest.NewBlob(d.packs).List(record.Extents[from:to]))
			if err != nil {
				return err
			}
			d.known = append(d.known, ref)
			lists[record.Path] = append(lists[record.Path], ref)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return lists, d.writer.Flush()
}

func (d *describer) segments(index *state.Index, known []segment, lists map[string][]manifest.Ref) ([]manifest.Segment, error) {
	count := len(known)
	segments := make([]manifest.Segment, 0, count)
	refs := make([]manifest.Ref, 0, count)
	blob := manifest.NewBlob(d.packs)
	for number := 0; number < count; number++ {
		if is := known[number]; is.isOld && !d.worn[d.old[is.old].Pack] && d.base.Root.Segments[is.old].Entries == is.records {
			refs = append(refs, d.old[is.old])
			segments = append(segments, manifest.Segment{Entries: is.records})
			continue
		}
		records, err := index.Segment(uint32(number))
		if err != nil {
			return nil, err
		}
		for i := range records {
			if refs := lists[records[i].Path]; refs != nil {
				records[i].Lists = refs
			}
			blob.Add(&records[i].Entry)
		}
		ref, err := d.store(blob.Segment())
		if err != nil {
			return nil, err
		}
		refs = append(refs, ref)
		segments = append(segments, manifest.Segment{Entries: uint64(len(records))})
	}
	if err := d.writer.Flush(); err != nil {
		return nil, err
	}
	for i, ref := range refs {
		d.used[ref.Pack] = true
		segments[i].Digest, segments[i].Offset, segments[i].Length, segments[i].Pack = ref.Digest.String(), ref.Offset, ref.Length, ref.Pack
	}
	return segments, nil
}

// finish makes the table of packs, and numbers them as in the root.
func (d *describer) finish(next *state.Base, segments []manifest.Segment) error {
	for _, ref := range d.known {
		d.used[ref.Pack] = true
	}
	bytes := map[string]uint64{}
	for number := range d.used {
		pack := d.packs.Get(number)
		bytes[pack.Digest.String()] = pack.Bytes
	}
	rows := make([]manifest.PackRow, 0, len(bytes))
	for digest, size := range bytes {
		rows = append(rows, manifest.PackRow{Digest: digest, Bytes: size})
	}
	sort.Slice(rows, func(i, j int) bool { return rows[i].Digest < rows[j].Digest })
	position := make(map[string]uint32, len(rows))
	for i, row := range rows {
		position[row.Digest] = uint32(i)
		if row.Bytes == 0 {
			return fmt.Errorf("the length of pack %s is not known", row.Digest)
		}
	}
	inRoot := func(number uint32) uint32 { return position[d.packs.Get(number).Digest.String()] }
	for i := range segments {
		segments[i].Pack = inRoot(segments[i].Pack)
	}
	for _, ref := range d.known {
		next.Lists = append(next.Lists, state.Chunk{Digest: ref.Digest.String(), Pack: inRoot(ref.Pack), Offset: ref.Offset, Length: ref.Length})
	}
	next.Root.Segments, next.Root.Packs = segments, rows
	return nil
}
