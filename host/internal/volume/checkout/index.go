package checkout

import (
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/state"
	"releap/host/internal/volume/tree"
)

// index records how the files look now: only now, as links and what is created in folders change them.
func index(kept *state.State, root int, source *manifest.Source, packs *manifest.Packs, base *state.Base) error {
	out, err := kept.NewIndex()
	if err != nil {
		return err
	}
	i := &indexer{out: out, source: source, paths: tree.NewResolver(root), numbers: map[string]uint32{}}
	defer i.paths.Close()
	for number, row := range source.Root.Packs {
		i.numbers[row.Digest] = uint32(number)
	}
	for number := range source.Root.Segments {
		if err = i.segment(number, packs); err != nil {
			out.Abandon()
			return err
		}
	}
	base.Lists = i.lists
	return out.Finish(packs, base)
}

type indexer struct {
	out     *state.IndexWriter
	source  *manifest.Source
	numbers map[string]uint32
	lists   []state.Chunk
	paths   *tree.Resolver
}

func (i *indexer) segment(number int, packs *manifest.Packs) error {
	entries, err := i.source.Segment(number)
	if err != nil {
		return err
	}
	for at := range entries {
		record := state.Record{Entry: entries[at]}
		lists, err := i.source.Extents(&record.Entry)
		if err != nil {
			return err
		}
		for _, ref := range lists {
			pack := i.numbers[packs.Get(ref.Pack).Digest.String()]
			i.lists = append(i.lists, state.Chunk{Digest: ref.Digest.String(), Pack: pack, Offset: ref.Offset, Length: ref.Length})
		}
		stat, err := i.paths.Lstat(record.Path)
		if err != nil {
			return &tree.PathError{Path: record.Path, Err: err}
		}
		record.Ino, record.Ctime = stat.Ino, stat.Ctime
		if err := i.out.Add(&record, at == 0); err != nil {
			return err
		}
	}
	return nil
}
