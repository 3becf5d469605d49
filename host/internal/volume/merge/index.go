package merge

import (
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/state"
)

// index makes the base of theirs. What the merge has not touched looks as before. What it has touched is read again by the next
// commit, as sandboxes may have written to it since.
func (m *merger) index() (*state.Base, error) {
	out, err := m.state.NewIndex()
	if err != nil {
		return nil, err
	}
	next := &state.Base{Tree: m.rootPath, Digest: m.source.Blob.Digest.String(), Bytes: m.source.Blob.Bytes, Root: *m.source.Root}
	if err = m.records(out); err == nil {
		err = m.listChunks(next)
	}
	if err != nil {
		out.Abandon()
		return nil, err
	}
	return next, out.Finish(m.packs, next)
}

func (m *merger) records(out *state.IndexWriter) error {
	old := cursor{old: oldRecords{plan: m.plan}}
	next := 0
	for number := range m.source.Root.Segments {
		if same, ok := m.same[number]; ok {
			records, err := m.plan.index.Segment(same)
			if err != nil {
				return err
			}
			for i := range records {
				if err := out.Add(&records[i], i == 0); err != nil {
					return err
				}
			}
			continue
		}
		entries, err := m.source.SegmentAlone(number)
		if err != nil {
			return err
		}
		for i := range entries {
			record := state.Record{Entry: entries[i], Unsure: true}
			if _, err := m.source.Extents(&record.Entry); err != nil {
				return err
			}
			before, _, err := old.find(record.Path, nil)
			if err != nil {
				return err
			}
			if before != nil && manifest.Same(&before.Entry, &record.Entry) {
				record.Ino, record.Ctime, record.Unsure = before.Ino, before.Ctime, before.Unsure
			} else {
				next = m.changeFrom(next, position{Segment: uint32(number), Item: uint32(i)})
				if next < len(m.changes) {
					record.Ino, record.Ctime = m.stamps[next].ino, m.stamps[next].ctime
				}
			}
			if err := out.Add(&record, i == 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// changeFrom gives the number of the change to an entry of theirs, which is this one or a later one.
func (m *merger) changeFrom(number int, at position) int {
	for number < len(m.changes) && (m.changes[number].newIsOld || m.changes[number].new != at) {
		number++
	}
	return number
}

// listChunks says where the lists of extents are that theirs names.
func (m *merger) listChunks(next *state.Base) error {
	numbers := make(map[string]uint32, len(next.Root.Packs))
	for number, row := range next.Root.Packs {
		numbers[row.Digest] = uint32(number)
	}
	seen := map[string]bool{}
	for i := range m.lists {
		ref := &m.lists[i]
		if number, ok := numbers[m.packs.Get(ref.Pack).Digest.String()]; ok && !seen[ref.Digest.String()] {
			seen[ref.Digest.String()] = true
			next.Lists = append(next.Lists, state.Chunk{Digest: ref.Digest.String(), Pack: number, Offset: ref.Offset, Length: ref.Length})
		}
	}
	for _, chunk := range m.base.Lists {
		if seen[chunk.Digest] || int(chunk.Pack) >= len(m.base.Root.Packs) {
			continue
		}
		if number, ok := numbers[m.base.Root.Packs[chunk.Pack].Digest]; ok {
			chunk.Pack = number
			next.Lists = append(next.Lists, chunk)
		}
	}
	return nil
}
