package merge

import (
	"golang.org/x/sys/unix"

	"releap/host/internal/failpoint"
	"releap/host/internal/volume/displaced"
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/tree"
)

// swap puts a file of theirs at the path. What is there must have what `expected` has: then it is displaced; else it goes aside.
func (m *merger) swap(t *target, entry *manifest.Entry, expected side) error {
	var from *anchor
	if t.group != nil && entry == t.new {
		var err error
		if from, err = m.anchor(*t.group); err != nil {
			return err
		}
	}
	if entry != t.new || from != nil {
		m.discard(t.number) // it has other attributes than the ones needed now
	}
	name, err := m.stage(t.number, entry, from)
	if err != nil {
		return err
	}
	ino := m.staged[t.number]
	failpoint.Reach("voltree-before-swap")
	if !t.exists {
		err = unix.Renameat2(m.displaced, name, t.folder, t.name, unix.RENAME_NOREPLACE)
	} else {
		err = unix.Renameat2(m.displaced, name, t.folder, t.name, unix.RENAME_EXCHANGE)
	}
	if err != nil {
		return err
	}
	m.staged[t.number] = 0
	failpoint.Reach("voltree-swapped")
	m.applied++
	if t.exists {
		if err := m.swappedOut(t, name, ino, expected); err != nil {
			return err
		}
	}
	stat, err := tree.Lstat(t.folder, t.name)
	if err == nil && stat.Ino == ino {
		m.know(t, ino, stat.Ctime)
	}
	if tree.IsGone(err) {
		err = nil // a sandbox has removed it already
	}
	return err
}

// discard removes a file that was staged.
func (m *merger) discard(number int) {
	if ino := m.staged[number]; ino != 0 {
		_ = tree.Remove(m.displaced, m.journal.name(number, ino))
		m.staged[number] = 0
	}
}

// swappedOut looks at what was at the path in the moment of the exchange.
func (m *merger) swappedOut(t *target, name string, ino uint64, expected side) error {
	stat, err := tree.Lstat(m.displaced, name)
	if err != nil {
		return err
	}
	if expected == neither || stat.Ino != t.stat.Ino || stat.Type() == manifest.Folder {
		return m.aside(m.displaced, name, t, displaced.Changed)
	}
	m.swapped = append(m.swapped, swapped{ino, uint32(t.number), expected})
	return nil
}

// know records how theirs looks in the tree.
func (m *merger) know(t *target, ino uint64, ctime manifest.Time) {
	m.stamps[t.number] = stamp{ino, ctime}
	if t.group != nil {
		if _, ok := m.groups[*t.group]; !ok {
			m.groups[*t.group] = anchor{t.path, ino}
		}
	}
}

// anchor gives a file of the tree with the content of a group of hard links; nil if there is none (yet).
func (m *merger) anchor(group manifest.LinkID) (*anchor, error) {
	known, ok := m.groups[group]
	if !ok {
		first, err := m.first(group)
		if first == nil {
			return nil, err
		}
		path := first.Path
		if number, err := m.numberOf(path); number >= 0 || err != nil {
			return nil, err
		}
		record, err := m.plan.index.Find(path)
		if record == nil {
			return nil, err
		}
		known = anchor{path, 0}
		stat, has, err := m.at(path, &record.Entry)
		if !has || err != nil {
			return nil, err
		}
		known.ino = stat.Ino
		m.groups[group] = known
		return &known, nil
	}
	stat, _, err := m.at(known.path, nil)
	if err != nil || stat.Ino != known.ino {
		return nil, err
	}
	return &known, nil
}

// at compares a path with an entry.
func (m *merger) at(path string, entry *manifest.Entry) (stat tree.Stat, has bool, err error) {
	folder, name, err := tree.OpenParent(m.root, path)
	if err != nil {
		return stat, false, ignoreGone(err)
	}
	defer unix.Close(folder)
	if stat, err = tree.Lstat(folder, name); err != nil || entry == nil {
		return stat, false, ignoreGone(err)
	}
	content, attributes, err := matches(folder, name, &stat, entry)
	return stat, content && attributes, ignoreGone(err)
}

// isLinkedElsewhere: the content is right, and its other names are not those of theirs.
func (m *merger) isLinkedElsewhere(t *target) bool {
	if t.group == nil {
		return false
	}
	from, err := m.anchor(*t.group)
	return err == nil && from != nil && from.ino != t.stat.Ino
}
