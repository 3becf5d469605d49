package merge

import (
	"golang.org/x/sys/unix"

	"releap/host/internal/volume/limbo"
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/tree"
)

// folderAttributes applies what theirs has changed of a folder.
func (m *merger) folderAttributes(s *spot) error {
	keepsTime := s.old != nil && s.old.Mtime == s.stat.Mtime
	if err := m.attributes(s, true); err != nil {
		return err
	}
	if keepsTime {
		m.folders = append(m.folders, folderTime{s.path, s.new.Mtime})
	}
	return nil
}

// attributes applies owner, mode and extended attributes, and leaves the content: that of theirs, or mine.
func (m *merger) attributes(s *spot, isNew bool) error {
	entry, err := m.mixed(s)
	if err != nil {
		return err
	}
	fd, err := tree.OpenPath(s.folder, s.name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	stat, err := tree.Fstat(fd)
	if err != nil {
		return err
	}
	if stat.Ino != s.stat.Ino || stat.Type() != s.new.Type {
		return errAgain
	}
	block, err := m.xattrs(entry)
	if err != nil {
		return err
	}
	if entry.Type == manifest.Folder {
		if _, same, err := matches(s.folder, s.name, &stat, entry); same || err != nil {
			m.know(s, stat.Ino, stat.Ctime)
			return err
		}
		entry.Mtime = stat.Mtime
	}
	if err := tree.SetLive(fd, entry, block); err != nil {
		return err
	}
	m.applied++
	if stat, err = tree.Fstat(fd); err != nil {
		return err
	}
	if isNew {
		m.know(s, stat.Ino, stat.Ctime)
	}
	return nil
}

// mixed gives theirs with those attributes that only mine has changed. Its content is theirs.
func (m *merger) mixed(s *spot) (*manifest.Entry, error) {
	entry := *s.new
	if s.old == nil || s.old.Type != s.new.Type || s.new.Type == manifest.Symlink {
		return &entry, nil
	}
	old, clash := &s.old.Entry, false
	pick := func(base, mine, theirs uint32) uint32 {
		if theirs == base {
			return mine
		}
		clash = clash || (mine != base && mine != theirs)
		return theirs
	}
	entry.Mode = pick(old.Mode, s.stat.Mode&0o7777, s.new.Mode)
	entry.UID = pick(old.UID, s.stat.UID, s.new.UID)
	entry.GID = pick(old.GID, s.stat.GID, s.new.GID)
	if s.new.Mtime == old.Mtime {
		entry.Mtime = s.stat.Mtime
	}
	block, err := xattrsOf(s.folder, s.name)
	if err != nil {
		return nil, err
	}
	switch {
	case manifest.SameXattrs(old, s.new):
		entry.Xattrs, entry.XattrRefs = block, nil
	case !isBlock(block, old) && !isBlock(block, s.new):
		clash = true
	}
	if clash {
		return &entry, m.conflict(s.path, s.path, limbo.Attributes)
	}
	return &entry, nil
}

// setFolderTimes is last: what is created in a folder changes its mtime.
func (m *merger) setFolderTimes() {
	for i := range m.folders {
		// What has gone meanwhile has no mtime to set.
		fd, _, err := tree.OpenParent(m.root, tree.Join(m.folders[i].path, "x"))
		if err != nil {
			continue
		}
		_ = tree.SetMtime(fd, m.folders[i].mtime)
		unix.Close(fd)
	}
}
