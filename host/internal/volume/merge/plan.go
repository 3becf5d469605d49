// Package merge applies what another host has committed to a tree that sandboxes write to meanwhile.
//
// It compares by path: the base (what this host has last committed or merged), theirs (the manifest), and mine (the tree as it is).
// What only they have changed is applied. Where both have changed something, theirs has the path, as it was committed first, and
// mine is renamed beside it. Nothing of mine is overwritten or unlinked: what is replaced is swapped out and stays in the folder of displaced files
// while a sandbox may still have it open.
//
// Changes are in memory as places in the base's index and in segments of theirs, a few bytes each: a merge may have millions.
package merge

import (
	"sort"

	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/pack"
	"releap/host/internal/volume/rpc"
	"releap/host/internal/volume/state"
)

// change is a path that theirs has changed.
type change struct {
	old, new position
	// newIsOld: new is a position in the base, too.
	newIsOld bool
}

// view is a change with its entries. Old or new is nil where it does not exist.
type view struct {
	path string
	old  *state.Record
	new  *manifest.Entry
}

// plan is the difference between the base and theirs.
type plan struct {
	base   *state.Base
	index  *state.Index
	source *manifest.Source
	packs  *manifest.Packs
	reader *pack.Reader
	// Segments of theirs that the base has, too: their numbers there.
	same    map[int]uint32
	oldRest []uint32 // the other segments of the base
	// Packs with segments and lists of theirs.
	described map[uint32]bool
	// In the order of their paths, of which some are in memory.
	changes []change
	samples []string
	cache   cache
	// First names of hard links: those of changed segments of theirs, and, once they are needed, those of the base.
	firsts    map[manifest.LinkID]position
	oldFirsts map[manifest.LinkID]position
	lists     []manifest.Ref
}

func openPlan(kept *state.State, rootFile, packFolder string, peer *rpc.Peer) (*plan, error) {
	base, err := kept.Base()
	if err != nil {
		return nil, err
	}
	packs := manifest.NewPacks()
	p := &plan{
		base: base, packs: packs, reader: pack.NewReader(packFolder, packs, peer), firsts: map[manifest.LinkID]position{}, same: map[int]uint32{},
		described: map[uint32]bool{},
	}
	if p.source, err = manifest.OpenSource(rootFile, packs, p.reader); err != nil {
		return nil, err
	}
	if p.index, err = kept.OpenIndex(base, packs); err != nil {
		return nil, err
	}
	numbers := make(map[string]uint32, len(base.Root.Segments))
	for number, segment := range base.Root.Segments {
		numbers[segment.Digest] = uint32(number)
	}
	for number, segment := range p.source.Root.Segments {
		if old, ok := numbers[segment.Digest]; ok {
			p.same[number] = old
			delete(numbers, segment.Digest)
		}
	}
	for _, number := range numbers {
		p.oldRest = append(p.oldRest, number)
	}
	sort.Slice(p.oldRest, func(i, j int) bool { return p.oldRest[i] < p.oldRest[j] })
	return p, nil
}

func (p *plan) close() {
	p.reader.Close()
	p.index.Close()
}

// compare finds the changes. It fetches the packs of changed segments and lists.
func (p *plan) compare() error {
	for number := range p.source.Root.Segments {
		if _, ok := p.same[number]; !ok {
			p.described[p.source.SegmentRef(number).Pack] = true
		}
	}
	for number := range p.described {
		if err := p.reader.Ask(number); err != nil {
			return err
		}
	}
	old := cursor{old: oldRecords{plan: p}}
	linked := map[manifest.LinkID]bool{}
	removed := func(record *state.Record, at position) { p.add(record.Path, change{old: at, new: nowhere}) }
	for number := range p.source.Root.Segments {
		if _, ok := p.same[number]; ok {
			continue
		}
		entries, err := p.source.SegmentAlone(number)
		if err != nil {
			return err
		}
		for i := range entries {
			entry, at := &entries[i], position{Segment: uint32(number), Item: uint32(i)}
			lists, err := p.source.Extents(entry)
			if err != nil {
				return err
			}
			for j := range lists {
				p.described[lists[j].Pack] = true
			}
			p.lists = append(p.lists, lists...)
			record, before, err := old.find(entry.Path, removed)
			if err != nil {
				return err
			}
			if entry.Linked {
				p.firsts[manifest.LinkOf(entry.Path)] = at
			}
			if record != nil && manifest.Same(&record.Entry, entry) {
				continue
			}
			p.add(entry.Path, change{old: before, new: at})
			if record != nil && record.Linked && entry.Linked {
				linked[manifest.LinkOf(entry.Path)] = true
			}
		}
	}
	if err := old.rest(removed); err != nil {
		return err
	}
	return p.addLinks(linked)
}

// addLinks adds the other names of changed files with several: their entries only name the first one, and are the same as before.
func (p *plan) addLinks(groups map[manifest.LinkID]bool) error {
	if len(groups) == 0 {
		return nil
	}
	changes := p.changes
	p.changes, p.samples = make([]change, 0, len(changes)), nil
	next := 0
	// until moves changes up to a path to the new list, and says whether the path has one.
	until := func(path *string) (bool, error) {
		for ; next < len(changes); next++ {
			there, err := p.pathAt(&changes[next])
			if err != nil {
				return false, err
			}
			if path != nil {
				if order := manifest.Compare(there, *path); order >= 0 {
					return order == 0, nil
				}
			}
			p.add(there, changes[next])
		}
		return false, nil
	}
	err := p.index.Each(func(at state.Position, record *state.Record) error {
		if record.Type != manifest.Link || !groups[record.Link] {
			return nil
		}
		has, err := until(&record.Path)
		if err == nil && !has {
			p.add(record.Path, change{old: at, new: at, newIsOld: true})
		}
		return err
	})
	if err == nil {
		_, err = until(nil)
	}
	return err
}

// theirs gives the content of a new entry: that of its first name if it is a hard link. The group is that name's, or nil.
func (p *plan) theirs(entry *manifest.Entry) (whole *manifest.Entry, group *manifest.LinkID, err error) {
	if entry.Type != manifest.Link {
		if entry.Linked {
			id := manifest.LinkOf(entry.Path)
			group = &id
		}
		return entry, group, nil
	}
	first, err := p.first(entry.Link)
	if first == nil || err != nil {
		if err == nil {
			err = manifest.ErrDamaged
		}
		return nil, nil, err
	}
	copied := *first
	copied.Path = entry.Path
	return &copied, &entry.Link, nil
}

// first gives the first name of a group of hard links; nil if theirs has none.
func (p *plan) first(group manifest.LinkID) (*manifest.Entry, error) {
	if at, ok := p.firsts[group]; ok {
		return p.newAt(at)
	}
	record, err := p.oldFirst(group)
	if record == nil {
		return nil, err
	}
	return &record.Entry, nil
}

func (p *plan) oldFirst(group manifest.LinkID) (*state.Record, error) {
	if p.oldFirsts == nil {
		p.oldFirsts = map[manifest.LinkID]position{}
		err := p.index.Each(func(at state.Position, record *state.Record) error {
			if record.Linked {
				p.oldFirsts[manifest.LinkOf(record.Path)] = at
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	at, ok := p.oldFirsts[group]
	if !ok {
		return nil, nil
	}
	return p.oldAt(at)
}

// before gives what the base has for a record, and how it looked. A hard link looks as its first name did.
func (p *plan) before(record *state.Record) (*state.Record, error) {
	if record == nil || record.Type != manifest.Link {
		return record, nil
	}
	first, err := p.oldFirst(record.Link)
	if first == nil {
		if err == nil {
			err = manifest.ErrDamaged
		}
		return nil, err
	}
	copied := *first
	copied.Path = record.Path
	return &copied, nil
}
