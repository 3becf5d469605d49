package merge

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/displaced"
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/state"
	"releap/host/internal/volume/tree"
)

// errAgain: a sandbox has changed what lstat gave. The next call decides anew.
var errAgain = errors.New("it changes all the time")

const attempts = 20

// target is a path that is being changed: what is there, and what the base and theirs have.
type target struct {
	// Of the change; -1 if it has none.
	number int
	path   string
	// The open folder, or -1 if it does not exist.
	folder int
	name   string
	// What is there, if anything is.
	exists bool
	stat   tree.Stat
	// Old and new are nil where they do not exist; hard links are as their first names.
	old   *state.Record
	new   *manifest.Entry
	group *manifest.LinkID
}

func (m *merger) apply(number int) error {
	v, err := m.view(number)
	if err != nil {
		return err
	}
	if err := m.applyView(number, &v); err != nil {
		return &tree.PathError{Path: v.path, Err: err}
	}
	return nil
}

func (m *merger) applyView(number int, v *view) error {
	old, err := m.before(v.old)
	if err != nil {
		return err
	}
	t := &target{number: number, path: v.path, old: old}
	if v.new != nil {
		if t.new, t.group, err = m.theirs(v.new); err != nil {
			return err
		}
	}
	for attempt := 0; attempt < attempts; attempt++ {
		if err = m.stat(t); err == nil {
			err = m.decide(t)
		}
		if !errors.Is(err, errAgain) && !tree.IsGone(err) && !errors.Is(err, unix.EEXIST) {
			return err
		}
		m.forget()
	}
	return errAgain
}

func (m *merger) decide(t *target) error {
	switch {
	case t.new == nil:
		return m.remove(t)
	case t.new.Type == manifest.Folder:
		return m.folderOf(t)
	}
	return m.fileOf(t)
}

// stat opens the folder of a path, and calls lstat for what is there.
func (m *merger) stat(t *target) error {
	t.exists = false
	if t.path == "" {
		stat, err := tree.Fstat(m.root)
		t.folder, t.name, t.exists, t.stat = m.root, ".", true, stat
		return err
	}
	parent := ""
	slash := strings.LastIndexByte(t.path, '/')
	if slash > 0 {
		parent = t.path[:slash]
	}
	t.name, t.folder = t.path[slash+1:], -1
	if m.parent < 0 || m.parentPath != parent {
		m.forget()
		fd, _, err := tree.OpenParent(m.root, t.path)
		if tree.IsGone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		m.parent, m.parentPath = fd, parent
	}
	t.folder = m.parent
	stat, err := tree.Lstat(t.folder, t.name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	t.exists, t.stat = true, stat
	return err
}

// forget closes the folder that was opened last.
func (m *merger) forget() {
	if m.parent >= 0 {
		unix.Close(m.parent)
		m.parent = -1
	}
}

func (t *target) isFolder() bool  { return t.exists && t.stat.Type() == manifest.Folder }
func (t *target) wasFolder() bool { return t.old != nil && t.old.Type == manifest.Folder }

// isOld compares what is there with the base.
func (m *merger) isOld(t *target) (content, attributes bool, err error) {
	if t.old == nil {
		return false, false, nil
	}
	if t.old.IsUnchanged(&t.stat) {
		return true, true, nil
	}
	return matches(t.folder, t.name, &t.stat, &t.old.Entry)
}

// remove applies a removal, unless mine has changed.
func (m *merger) remove(t *target) error {
	switch {
	case !t.exists:
		return nil
	case t.path == "":
		return manifest.ErrDamaged
	case t.wasFolder():
		if !t.isFolder() {
			return nil
		}
		if !m.isLate {
			m.deferred = append(m.deferred, t.number)
			return nil
		}
		err := unix.Unlinkat(t.folder, t.name, unix.AT_REMOVEDIR)
		if err == nil {
			m.applied++
			m.forget()
		}
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			return nil // mine has something in it
		}
		return err
	case t.isFolder():
		return nil
	}
	content, attributes, err := m.isOld(t)
	if err != nil {
		return err
	}
	if !content || !attributes {
		return m.conflict(t.path, t.path, displaced.Deleted)
	}
	return m.takeOut(t)
}

// takeOut displaces what is there.
func (m *merger) takeOut(t *target) error {
	name := m.journal.name(t.number, takenOut)
	if err := unix.Renameat2(t.folder, t.name, m.displaced, name, unix.RENAME_NOREPLACE); err != nil {
		return err
	}
	m.applied++
	m.swapped = append(m.swapped, swapped{takenOut, uint32(t.number), base})
	return nil
}

// takenOut is instead of an inode in the names of files that nothing was swapped in for.
const takenOut = 0

// conflict records one, once.
func (m *merger) conflict(path, kept, kind string) error {
	conflict := displaced.Conflict{Path: path, Kept: kept, Kind: kind}
	if m.journal.known[conflict] {
		return nil
	}
	return m.journal.add(conflict)
}

// aside renames mine to a free name beside its path.
func (m *merger) aside(from int, name string, t *target, kind string) error {
	folder := ""
	if slash := strings.LastIndexByte(t.path, '/'); slash > 0 {
		folder = t.path[:slash]
	}
	announce := m.announcer(t.path, kind)
	_, err := displaced.MoveAside(from, name, t.folder, t.name, m.suffix, func(free string) error {
		if number, err := m.numberOf(tree.Join(folder, free)); err != nil {
			return err
		} else if number >= 0 {
			return displaced.ErrTaken
		}
		return announce(tree.Join(folder, free))
	})
	return err
}

// announcer records a conflict with each name that is tried, before a file has that name, and takes back the one before.
func (m *merger) announcer(path, kind string) func(kept string) error {
	hasAdded := false
	return func(kept string) error {
		if hasAdded {
			if err := m.journal.drop(); err != nil {
				return err
			}
		}
		conflict := displaced.Conflict{Path: path, Kept: kept, Kind: kind}
		// A merge that was interrupted may have recorded it.
		hasAdded = !m.journal.known[conflict]
		if !hasAdded {
			return nil
		}
		return m.journal.add(conflict)
	}
}

// fileOf makes the path a file, link, FIFO or whiteout.
func (m *merger) fileOf(t *target) error {
	switch {
	case !t.exists:
		return m.place(t)
	case t.isFolder():
		if t.old != nil && manifest.SameContent(&t.old.Entry, t.new) {
			return nil // theirs has not changed what mine has replaced
		}
		return m.replaceFolder(t)
	}
	isNew, sameAttributes, err := matches(t.folder, t.name, &t.stat, t.new)
	if err != nil {
		return err
	}
	isOld, oldAttributes, err := m.isOld(t)
	if err != nil {
		return err
	}
	theirsChanged := t.old == nil || !manifest.SameContent(&t.old.Entry, t.new)
	switch {
	case isNew && m.isLinkedElsewhere(t):
		return m.swap(t, t.new, theirs)
	case isNew && sameAttributes && !(t.old != nil && t.stat.Mtime == t.old.Mtime && t.stat.Mtime != t.new.Mtime):
		m.know(t, t.stat.Ino, t.stat.Ctime)
		return nil
	case !theirsChanged && t.stat.Type() != t.new.Type:
		return nil // mine has replaced it by something else
	case isNew || !theirsChanged:
		return m.attributes(t, isNew)
	case isOld && oldAttributes:
		return m.swap(t, t.new, base)
	case isOld:
		entry, err := m.mixed(t)
		if err != nil {
			return err
		}
		return m.swap(t, entry, base)
	}
	return m.swap(t, t.new, neither)
}

// place puts theirs where nothing is.
func (m *merger) place(t *target) error {
	if t.old != nil {
		if manifest.SameContent(&t.old.Entry, t.new) && manifest.SameAttributes(&t.old.Entry, t.new) {
			return nil // mine has removed it, and theirs has not changed it
		}
		if !m.isExplained(t.path) {
			if err := m.conflict(t.path, t.path, displaced.Deleted); err != nil {
				return err
			}
		}
	}
	if t.folder < 0 {
		if err := m.makeFolders(t.path); err != nil {
			return err
		}
		return errAgain
	}
	return m.swap(t, t.new, neither)
}

// isExplained: mine is not there because it has gone aside, perhaps in an interrupted merge, and was not removed by a sandbox.
func (m *merger) isExplained(path string) bool {
	return m.isLate || m.journal.aside[path]
}
