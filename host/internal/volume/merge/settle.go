package merge

import (
	"time"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/limbo"
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/tree"
)

// expectation is what a file has that was swapped out, unless a sandbox has just written to it.
type expectation = manifest.Entry

// ctimeSteps is longer than the steps in which ctimes advance.
const ctimeSteps = 20 * time.Millisecond

// settle decides what becomes of files that were swapped out, which each gives: those that a sandbox has written to until now go aside,
// and the others are listed, with ctimes that any later write changes.
func (m *merger) settle(each func(settle func(name, path string, expected *expectation) error) error) error {
	var list *limbo.List
	err := each(func(name, path string, expected *expectation) (err error) {
		if list == nil {
			time.Sleep(ctimeSteps)
			if list, err = limbo.OpenList(m.state); err != nil {
				return err
			}
		}
		item, err := m.settleOne(name, path, expected)
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

// settleSwapped settles what this merge has swapped out.
func (m *merger) settleSwapped() error {
	return m.settle(func(settle func(name, path string, expected *expectation) error) error {
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
			if err := settle(m.journal.name(int(file.number), file.ino), v.path, expected); err != nil {
				return err
			}
		}
		return nil
	})
}

// settleOne gives the item of a file that stays in limbo; nil if it has gone aside, or has another name.
func (m *merger) settleOne(name, path string, expected *expectation) (*limbo.Item, error) {
	stat, err := tree.Lstat(m.limbo, name)
	if err != nil {
		return nil, err
	}
	if stat.Nlink > 1 && stat.Type() == manifest.File { // its content has another name
		return nil, unix.Unlinkat(m.limbo, name, 0)
	}
	item, err := m.settled(name, path, stat, expected)
	if item != nil || err != nil {
		return item, err
	}
	_, err = limbo.Rescue(m.root, m.limbo, name, path, m.suffix, m.announcer(path, limbo.Changed))
	return nil, err
}

// settled gives the item of a file that has what is expected; nil if it has not.
func (m *merger) settled(name, path string, stat tree.Stat, expected *expectation) (*limbo.Item, error) {
	if expected == nil || stat.Type() != expected.Type {
		return nil, nil
	}
	if stat.Type() == manifest.File {
		fd, err := tree.OpenFile(m.limbo, name)
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
	return &limbo.Item{
		Folder: []byte(m.limboPath), Name: name, Path: []byte(path), Suffix: m.suffix, Ctime: stat.Ctime, Since: time.Now().Unix(),
	}, nil
}
