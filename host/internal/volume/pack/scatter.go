package pack

import "sort"

// Row says that a chunk of a pack belongs to something: the caller knows what from Group, Item and Part.
type Row struct {
	Pack  uint32
	Group uint32
	Item  uint32
	// Part is negative for parts that are no content.
	Part int32
}

// AheadBytes is how much is fetched before it is used, or written before it is stored: packs of about this length are in a folder at
// a time, beside those to keep. Less in tests.
var AheadBytes uint64 = 128 * 1024 * 1024

// Scatter calls place for each row, pack by pack, and in the order of Group, Item and Part for each. Packs are fetched a few at a time,
// and dropped when their rows are placed, but for those to keep. Packs for whose rows has says yes are left out.
func (r *Reader) Scatter(rows []Row, keep map[uint32]bool, has func(rows []Row) (bool, error), place func(row *Row) error) error {
	sort.Slice(rows, func(i, j int) bool {
		a, b := &rows[i], &rows[j]
		switch {
		case a.Pack != b.Pack:
			return a.Pack < b.Pack
		case a.Group != b.Group:
			return a.Group < b.Group
		case a.Item != b.Item:
			return a.Item < b.Item
		}
		return a.Part < b.Part
	})
	var asked []([]Row)
	bytes := uint64(0)
	for len(rows) > 0 || len(asked) > 0 {
		for len(rows) > 0 && (len(asked) == 0 || bytes < AheadBytes) {
			next := rows[:sort.Search(len(rows), func(i int) bool { return rows[i].Pack > rows[0].Pack })]
			rows = rows[len(next):]
			done, err := r.isPlaced(next, has)
			if err == nil && !done {
				err = r.Ask(next[0].Pack)
			}
			if err != nil {
				return err
			}
			if !done {
				asked, bytes = append(asked, next), bytes+r.packs.Get(next[0].Pack).Bytes
			}
		}
		if len(asked) == 0 {
			return nil
		}
		first := asked[0]
		for i := range first {
			if err := place(&first[i]); err != nil {
				return err
			}
		}
		number := first[0].Pack
		if !keep[number] {
			if err := r.Drop(number); err != nil {
				return err
			}
		}
		asked, bytes = asked[1:], bytes-r.packs.Get(number).Bytes
	}
	return nil
}

// isPlaced is not asked for packs that are here.
func (r *Reader) isPlaced(rows []Row, has func(rows []Row) (bool, error)) (bool, error) {
	if has == nil {
		return false, nil
	}
	here, err := r.Has(r.packs.Get(rows[0].Pack))
	if err != nil || here {
		return false, err
	}
	return has(rows)
}
