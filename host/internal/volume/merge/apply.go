package merge

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/limbo"
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/state"
	"releap/host/internal/volume/tree"
)

// errAgain: a sandbox has changed what was looked at. The next look decides anew.
var errAgain = errors.New("it changes all the time")

const attempts = 20

// spot is a path that is being changed: what is there, and what the base and theirs have.
type spot struct {
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
	s := &spot{number: number, path: v.path, old: old}
	if v.new != nil {
		if s.new, s.group, err = m.theirs(v.new); err != nil {
			return err
		}
	}
	for attempt := 0; attempt < attempts; attempt++ {
		if err = m.look(s); err == nil {
			err = m.decide(s)
		}
		if !errors.Is(err, errAgain) && !tree.IsGone(err) && !errors.Is(err, unix.EEXIST) {
			return err
		}
		m.forget()
	}
	return errAgain
}

func (m *merger) decide(s *spot) error {
	switch {
	case s.new == nil:
		return m.remove(s)
	case s.new.Type == manifest.Folder:
		return m.folderOf(s)
	}
	return m.fileOf(s)
}

// look opens the folder of a path, and sees what is there.
func (m *merger) look(s *spot) error {
	s.exists = false
	if s.path == "" {
		stat, err := tree.Fstat(m.root)
		s.folder, s.name, s.exists, s.stat = m.root, ".", true, stat
		return err
	}
	parent := ""
	slash := strings.LastIndexByte(s.path, '/')
	if slash > 0 {
		parent = s.path[:slash]
	}
	s.name, s.folder = s.path[slash+1:], -1
	if m.parent < 0 || m.parentPath != parent {
		m.forget()
		fd, _, err := tree.OpenParent(m.root, s.path)
		if tree.IsGone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		m.parent, m.parentPath = fd, parent
	}
	s.folder = m.parent
	stat, err := tree.Lstat(s.folder, s.name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	s.exists, s.stat = true, stat
	return err
}

// forget closes the folder that was opened last.
func (m *merger) forget() {
	if m.parent >= 0 {
		unix.Close(m.parent)
		m.parent = -1
	}
}

func (s *spot) isFolder() bool  { return s.exists && s.stat.Type() == manifest.Folder }
func (s *spot) wasFolder() bool { return s.old != nil && s.old.Type == manifest.Folder }

// isOld compares what is there with the base.
func (m *merger) isOld(s *spot) (content, attributes bool, err error) {
	if s.old == nil {
		return false, false, nil
	}
	if s.old.Looks(&s.stat) {
		return true, true, nil
	}
	return matches(s.folder, s.name, &s.stat, &s.old.Entry)
}

// remove applies a removal, unless mine has changed.
func (m *merger) remove(s *spot) error {
	switch {
	case !s.exists:
		return nil
	case s.path == "":
		return manifest.ErrDamaged
	case s.wasFolder():
		if !s.isFolder() {
			return nil
		}
		if !m.isLate {
			m.deferred = append(m.deferred, s.number)
			return nil
		}
		err := unix.Unlinkat(s.folder, s.name, unix.AT_REMOVEDIR)
		if err == nil {
			m.applied++
			m.forget()
		}
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			return nil // mine has something in it
		}
		return err
	case s.isFolder():
		return nil
	}
	content, attributes, err := m.isOld(s)
	if err != nil {
		return err
	}
	if !content || !attributes {
		return m.conflict(s.path, s.path, limbo.Deleted)
	}
	return m.takeOut(s)
}

// takeOut moves what is there into limbo.
func (m *merger) takeOut(s *spot) error {
	name := m.journal.name(s.number, takenOut)
	if err := unix.Renameat2(s.folder, s.name, m.limbo, name, unix.RENAME_NOREPLACE); err != nil {
		return err
	}
	m.applied++
	m.swapped = append(m.swapped, swapped{takenOut, uint32(s.number), base})
	return nil
}

// takenOut is instead of an inode in the names of files that nothing was swapped in for.
const takenOut = 0

// conflict records one, once.
func (m *merger) conflict(path, kept, kind string) error {
	conflict := limbo.Conflict{Path: path, Kept: kept, Kind: kind}
	if m.journal.known[conflict] {
		return nil
	}
	return m.journal.add(conflict)
}

// aside renames mine to a free name beside its path.
func (m *merger) aside(from int, name string, s *spot, kind string) error {
	folder := ""
	if slash := strings.LastIndexByte(s.path, '/'); slash > 0 {
		folder = s.path[:slash]
	}
	announce := m.announcer(s.path, kind)
	_, err := limbo.MoveAside(from, name, s.folder, s.name, m.suffix, func(free string) error {
		if number, err := m.numberOf(tree.Join(folder, free)); err != nil {
			return err
		} else if number >= 0 {
			return limbo.ErrTaken
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
		conflict := limbo.Conflict{Path: path, Kept: kept, Kind: kind}
		// A merge that was interrupted may have recorded it.
		hasAdded = !m.journal.known[conflict]
		if !hasAdded {
			return nil
		}
		return m.journal.add(conflict)
	}
}

// fileOf makes the path a file, link, FIFO or whiteout.
func (m *merger) fileOf(s *spot) error {
	switch {
	case !s.exists:
		return m.place(s)
	case s.isFolder():
		if s.old != nil && manifest.SameContent(&s.old.Entry, s.new) {
			return nil // theirs has not changed what mine has replaced
		}
		return m.replaceFolder(s)
	}
	isNew, sameAttributes, err := matches(s.folder, s.name, &s.stat, s.new)
	if err != nil {
		return err
	}
	isOld, oldAttributes, err := m.isOld(s)
	if err != nil {
		return err
	}
	theirsChanged := s.old == nil || !manifest.SameContent(&s.old.Entry, s.new)
	switch {
	case isNew && m.isLinkedElsewhere(s):
		return m.swap(s, s.new, theirs)
	case isNew && sameAttributes && !(s.old != nil && s.stat.Mtime == s.old.Mtime && s.stat.Mtime != s.new.Mtime):
		m.know(s, s.stat.Ino, s.stat.Ctime)
		return nil
	case !theirsChanged && s.stat.Type() != s.new.Type:
		return nil // mine has replaced it by something else
	case isNew || !theirsChanged:
		return m.attributes(s, isNew)
	case isOld && oldAttributes:
		return m.swap(s, s.new, base)
	case isOld:
		entry, err := m.mixed(s)
		if err != nil {
			return err
		}
		return m.swap(s, entry, base)
	}
	return m.swap(s, s.new, neither)
}

// place puts theirs where nothing is.
func (m *merger) place(s *spot) error {
	if s.old != nil {
		if manifest.SameContent(&s.old.Entry, s.new) && manifest.SameAttributes(&s.old.Entry, s.new) {
			return nil // mine has removed it, and theirs has not changed it
		}
		if !m.isExplained(s.path) {
			if err := m.conflict(s.path, s.path, limbo.Deleted); err != nil {
				return err
			}
		}
	}
	if s.folder < 0 {
		if err := m.makeFolders(s.path); err != nil {
			return err
		}
		return errAgain
	}
	return m.swap(s, s.new, neither)
}

// isExplained: mine is not there because it has gone aside, perhaps in an interrupted merge, and was not removed by a sandbox.
func (m *merger) isExplained(path string) bool {
	return m.isLate || m.journal.aside[path]
}
