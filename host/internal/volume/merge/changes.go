package merge

import (
	"math"
	"sort"

	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/state"
)

type position = state.Position

var nowhere = position{Segment: math.MaxUint32, Item: math.MaxUint32}

// sampled is how many changes are between two whose paths are in memory.
const sampled = 256

func (p *plan) add(path string, added change) {
	if len(p.changes)%sampled == 0 {
		p.samples = append(p.samples, path)
	}
	p.changes = append(p.changes, added)
}

// view gives a change with its entries.
func (p *plan) view(number int) (view, error) {
	change := &p.changes[number]
	var v view
	var err error
	if change.old != nowhere {
		if v.old, err = p.oldAt(change.old); err != nil {
			return v, err
		}
		v.path = v.old.Path
	}
	switch {
	case change.newIsOld:
		v.new = &v.old.Entry
	case change.new != nowhere:
		if v.new, err = p.newAt(change.new); err != nil {
			return v, err
		}
		v.path = v.new.Path
	}
	return v, nil
}

func (p *plan) pathAt(change *change) (string, error) {
	if change.old != nowhere {
		record, err := p.oldAt(change.old)
		if err != nil {
			return "", err
		}
		return record.Path, nil
	}
	entry, err := p.newAt(change.new)
	if err != nil {
		return "", err
	}
	return entry.Path, nil
}

// numberOf gives the number of the change of a path, or -1.
func (p *plan) numberOf(path string) (int, error) {
	sample := sort.Search(len(p.samples), func(i int) bool { return manifest.Compare(p.samples[i], path) > 0 }) - 1
	if sample < 0 {
		return -1, nil
	}
	from, to := sample*sampled, (sample+1)*sampled
	if to > len(p.changes) {
		to = len(p.changes)
	}
	var err error
	found := -1
	sort.Search(to-from, func(i int) bool {
		there, pathErr := p.pathAt(&p.changes[from+i])
		if pathErr != nil {
			err = pathErr
			return true
		}
		order := manifest.Compare(there, path)
		if order == 0 {
			found = from + i
		}
		return order >= 0
	})
	return found, err
}

// folder gives the entry of theirs for a folder above a change, and the number of its change, or -1.
func (p *plan) folder(path string) (*manifest.Entry, int, error) {
	number, err := p.numberOf(path)
	if err != nil {
		return nil, -1, err
	}
	if number >= 0 {
		v, err := p.view(number)
		return v.new, number, err
	}
	record, err := p.index.Find(path)
	if record == nil {
		return nil, -1, err
	}
	return &record.Entry, -1, err
}

// cache has the segments of both sides that were read last: changes are visited in order, and their groups of hard links beside.
type cache struct {
	old     [cached][]state.Record
	olds    [cached]uint32
	new     [cached][]manifest.Entry
	news    [cached]uint32
	nextOld int
	nextNew int
}

const cached = 4

func (p *plan) oldAt(at position) (*state.Record, error) {
	c := &p.cache
	for i := range c.old {
		if c.old[i] != nil && c.olds[i] == at.Segment {
			return &c.old[i][at.Item], nil
		}
	}
	records, err := p.index.Segment(at.Segment)
	if err != nil {
		return nil, err
	}
	c.old[c.nextOld], c.olds[c.nextOld] = records, at.Segment
	c.nextOld = (c.nextOld + 1) % cached
	return &records[at.Item], nil
}

// newAt gives an entry of theirs with its extents.
func (p *plan) newAt(at position) (*manifest.Entry, error) {
	c := &p.cache
	for i := range c.new {
		if c.new[i] != nil && c.news[i] == at.Segment {
			return p.whole(&c.new[i][at.Item])
		}
	}
	entries, err := p.source.SegmentAlone(int(at.Segment))
	if err != nil {
		return nil, err
	}
	c.new[c.nextNew], c.news[c.nextNew] = entries, at.Segment
	c.nextNew = (c.nextNew + 1) % cached
	return p.whole(&entries[at.Item])
}

func (p *plan) whole(entry *manifest.Entry) (*manifest.Entry, error) {
	_, err := p.source.Extents(entry)
	return entry, err
}

// oldRecords gives the records of the base that are in segments that theirs does not have.
type oldRecords struct {
	plan    *plan
	segment int
	item    uint32
	records []state.Record
}

func (o *oldRecords) next() (*state.Record, position, error) {
	for len(o.records) == 0 {
		if o.segment == len(o.plan.oldRest) {
			return nil, nowhere, nil
		}
		var err error
		if o.records, err = o.plan.index.Segment(o.plan.oldRest[o.segment]); err != nil {
			return nil, nowhere, err
		}
		o.segment++
		o.item = 0
	}
	record, at := &o.records[0], position{Segment: o.plan.oldRest[o.segment-1], Item: o.item}
	o.records = o.records[1:]
	o.item++
	return record, at, nil
}

// cursor reads the old records in step with paths that come in order.
type cursor struct {
	old  oldRecords
	next *state.Record
	at   position
	read bool
}

// find gives the record of a path. Those before it, which theirs does not have, are given to skipped, which may be nil.
func (c *cursor) find(path string, skipped func(*state.Record, position)) (*state.Record, position, error) {
	for {
		if !c.read {
			var err error
			if c.next, c.at, err = c.old.next(); err != nil {
				return nil, nowhere, err
			}
			c.read = true
		}
		if c.next == nil {
			return nil, nowhere, nil
		}
		order := manifest.Compare(c.next.Path, path)
		if order > 0 {
			return nil, nowhere, nil
		}
		c.read = false
		if order == 0 {
			return c.next, c.at, nil
		}
		if skipped != nil {
			skipped(c.next, c.at)
		}
	}
}

// rest gives all records after the last path.
func (c *cursor) rest(skipped func(*state.Record, position)) error {
	for {
		if !c.read {
			var err error
			if c.next, c.at, err = c.old.next(); err != nil {
				return err
			}
		}
		c.read = false
		if c.next == nil {
			return nil
		}
		skipped(c.next, c.at)
	}
}
