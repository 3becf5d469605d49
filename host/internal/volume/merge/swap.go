package merge

import (
	"golang.org/x/sys/unix"

	"releap/host/internal/failpoint"
	"releap/host/internal/volume/limbo"
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/tree"
)

// swap puts a file of theirs at the path. What is there must have what `expected` has: it goes to limbo; else it goes aside.
func (m *merger) swap(s *spot, entry *manifest.Entry, expected side) error {
	var from *anchor
	if s.group != nil && entry == s.new {
		var err error
		if from, err = m.anchor(*s.group); err != nil {
			return err
		}
	}
	if entry != s.new || from != nil {
		m.discard(s.number) // it has other attributes than the ones needed now
	}
	name, err := m.stage(s.number, entry, from)
	if err != nil {
		return err
	}
	ino := m.staged[s.number]
	failpoint.Reach("voltree-before-swap")
	if !s.exists {
		err = unix.Renameat2(m.limbo, name, s.folder, s.name, unix.RENAME_NOREPLACE)
	} else {
		err = unix.Renameat2(m.limbo, name, s.folder, s.name, unix.RENAME_EXCHANGE)
	}
	if err != nil {
		return err
	}
	m.staged[s.number] = 0
	failpoint.Reach("voltree-swapped")
	m.applied++
	if s.exists {
		if err := m.swappedOut(s, name, ino, expected); err != nil {
			return err
		}
	}
	stat, err := tree.Lstat(s.folder, s.name)
	if err == nil && stat.Ino == ino {
		m.know(s, ino, stat.Ctime)
	}
	if tree.IsGone(err) {
		err = nil // a sandbox has removed it already
	}
	return err
}

// discard removes a file that was staged.
func (m *merger) discard(number int) {
	if ino := m.staged[number]; ino != 0 {
		_ = tree.Remove(m.limbo, m.journal.name(number, ino))
		m.staged[number] = 0
	}
}

// swappedOut looks at what was at the path in the moment of the exchange.
func (m *merger) swappedOut(s *spot, name string, ino uint64, expected side) error {
	stat, err := tree.Lstat(m.limbo, name)
	if err != nil {
		return err
	}
	if expected == neither || stat.Ino != s.stat.Ino || stat.Type() == manifest.Folder {
		return m.aside(m.limbo, name, s, limbo.Changed)
	}
	m.swapped = append(m.swapped, swapped{ino, uint32(s.number), expected})
	return nil
}

// know records how theirs looks in the tree.
func (m *merger) know(s *spot, ino uint64, ctime manifest.Time) {
	m.stamps[s.number] = stamp{ino, ctime}
	if s.group != nil {
		if _, ok := m.groups[*s.group]; !ok {
			m.groups[*s.group] = anchor{s.path, ino}
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
func (m *merger) isLinkedElsewhere(s *spot) bool {
	if s.group == nil {
		return false
	}
	from, err := m.anchor(*s.group)
	return err == nil && from != nil && from.ino != s.stat.Ino
}
