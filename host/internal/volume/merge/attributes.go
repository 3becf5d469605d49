package merge

import (
	"golang.org/x/sys/unix"

	"releap/host/internal/volume/displaced"
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/tree"
)

// folderAttributes applies what theirs has changed of a folder.
func (m *merger) folderAttributes(t *target) error {
	keepsTime := t.old != nil && t.old.Mtime == t.stat.Mtime
	if err := m.attributes(t, true); err != nil {
		return err
	}
	if keepsTime {
		m.folders = append(m.folders, folderTime{t.path, t.new.Mtime})
	}
	return nil
}

// attributes applies owner, mode and extended attributes, and leaves the content: that of theirs, or mine.
func (m *merger) attributes(t *target, isNew bool) error {
	entry, err := m.mixed(t)
	if err != nil {
		return err
	}
	fd, err := tree.OpenPath(t.folder, t.name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	stat, err := tree.Fstat(fd)
	if err != nil {
		return err
	}
	if stat.Ino != t.stat.Ino || stat.Type() != t.new.Type {
		return errAgain
	}
	block, err := m.xattrs(entry)
	if err != nil {
		return err
	}
	if entry.Type == manifest.Folder {
		if _, same, err := matches(t.folder, t.name, &stat, entry); same || err != nil {
			m.know(t, stat.Ino, stat.Ctime)
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
		m.know(t, stat.Ino, stat.Ctime)
	}
	return nil
}

// mixed gives theirs with those attributes that only mine has changed. Its content is theirs.
func (m *merger) mixed(t *target) (*manifest.Entry, error) {
	entry := *t.new
	if t.old == nil || t.old.Type != t.new.Type || t.new.Type == manifest.Symlink {
		return &entry, nil
	}
	old, clash := &t.old.Entry, false
	pick := func(base, mine, theirs uint32) uint32 {
		if theirs == base {
			return mine
		}
		clash = clash || (mine != base && mine != theirs)
		return theirs
	}
	entry.Mode = pick(old.Mode, t.stat.Mode&0o7777, t.new.Mode)
	entry.UID = pick(old.UID, t.stat.UID, t.new.UID)
	entry.GID = pick(old.GID, t.stat.GID, t.new.GID)
	if t.new.Mtime == old.Mtime {
		entry.Mtime = t.stat.Mtime
	}
	block, err := xattrsOf(t.folder, t.name)
	if err != nil {
		return nil, err
	}
	switch {
	case manifest.SameXattrs(old, t.new):
		entry.Xattrs, entry.XattrRefs = block, nil
	case !isBlock(block, old) && !isBlock(block, t.new):
		clash = true
	}
	if clash {
		return &entry, m.conflict(t.path, t.path, displaced.Attributes)
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
