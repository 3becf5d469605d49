package merge

import (
	"time"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/displaced"
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/tree"
)

// expectation is what a file has that was swapped out, unless a sandbox has just written to it.
type expectation = manifest.Entry

// ctimeSteps is longer than the steps in which ctimes advance.
const ctimeSteps = 20 * time.Millisecond

// finalize decides what becomes of files that were swapped out, which each gives: those that a sandbox has written to until now go aside,
// and the others are listed, with ctimes that any later write changes.
func (m *merger) finalize(each func(finalize func(name, path string, expected *expectation) error) error) error {
	var list *displaced.List
	err := each(func(name, path string, expected *expectation) (err error) {
		if list == nil {
			time.Sleep(ctimeSteps)
			if list, err = displaced.OpenList(m.state); err != nil {
				return err
			}
		}
		item, err := m.finalizeOne(name, path, expected)
		if err != nil {
			return &tree.PathError{Path: path, Err: err}
		}
		if item == nil {
			return nil
		}
		return list.Add(item)
	})
	if list != nil {
		if closeErr := list.Close(); err == nil {
			err = closeErr
		}
	}
	return err
}

// finalizeSwapped finalizes what this merge has swapped out.
func (m *merger) finalizeSwapped() error {
	return m.finalize(func(finalize func(name, path string, expected *expectation) error) error {
		for _, file := range m.swapped {
			v, err := m.view(int(file.number))
			if err != nil {
				return err
			}
			var expected *expectation
			switch file.expected {
			case base:
				record, err := m.before(v.old)
				if err != nil {
					return err
				}
				expected = &record.Entry
			case theirs:
				if expected, _, err = m.theirs(v.new); err != nil {
					return err
				}
			}
			if err := finalize(m.journal.name(int(file.number), file.ino), v.path, expected); err != nil {
				return err
			}
		}
		return nil
	})
}

// finalizeOne gives the item of a file that stays displaced; nil if it has gone aside, or has another name.
func (m *merger) finalizeOne(name, path string, expected *expectation) (*displaced.Item, error) {
	stat, err := tree.Lstat(m.displaced, name)
	if err != nil {
		return nil, err
	}
	if stat.Nlink > 1 && stat.Type() == manifest.File { // its content has another name
		return nil, unix.Unlinkat(m.displaced, name, 0)
	}
	item, err := m.unchangedItem(name, path, stat, expected)
	if item != nil || err != nil {
		return item, err
	}
	_, err = displaced.RestoreAside(m.root, m.displaced, name, path, m.suffix, m.announcer(path, displaced.Changed))
	return nil, err
}

// unchangedItem gives the item of a file that has what is expected; nil if it has not.
func (m *merger) unchangedItem(name, path string, stat tree.Stat, expected *expectation) (*displaced.Item, error) {
	if expected == nil || stat.Type() != expected.Type {
		return nil, nil
	}
	if stat.Type() == manifest.File {
		fd, err := tree.OpenFile(m.displaced, name)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		// Writes through mappings show in the ctime after this.
		if err := unix.Fdatasync(fd); err != nil {
			return nil, err
		}
		if stat, err = tree.Fstat(fd); err != nil {
			return nil, err
		}
		if has, err := fileHas(fd, expected); err != nil || !has {
			return nil, err
		}
	}
	return &displaced.Item{
		Folder: []byte(m.displacedPath), Name: name, Path: []byte(path), Suffix: m.suffix, Ctime: stat.Ctime, Since: time.Now().Unix(),
	}, nil
}
