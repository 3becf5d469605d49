package merge

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/displaced"
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/tree"
)

// folderOf makes the path a folder.
func (m *merger) folderOf(t *target) error {
	if t.isFolder() {
		return m.folderAttributes(t)
	}
	if t.exists && t.wasFolder() {
		return nil // what theirs has changed in it moves mine aside
	}
	if t.exists {
		content, attributes, err := m.isOld(t)
		if err != nil {
			return err
		}
		if content && attributes {
			err = m.takeOut(t)
		} else {
			err = m.aside(t.folder, t.name, t, displaced.Type)
		}
		if err != nil {
			return err
		}
		return errAgain
	}
	if t.wasFolder() {
		return nil // mine has removed it; what theirs has changed in it makes it again
	}
	if t.folder < 0 {
		if err := m.makeFolders(t.path); err != nil {
			return err
		}
		return errAgain
	}
	m.applied++
	return m.makeFolder(t, t.new)
}

func (m *merger) makeFolder(t *target, entry *manifest.Entry) error {
	if err := unix.Mkdirat(t.folder, t.name, 0o700); err != nil {
		return err
	}
	fd, err := tree.OpenFolder(t.folder, t.name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	block, err := m.xattrs(entry)
	if err != nil {
		return err
	}
	if err := tree.SetLive(fd, entry, block); err != nil {
		return err
	}
	m.folders = append(m.folders, folderTime{t.path, entry.Mtime})
	stat, err := tree.Fstat(fd)
	if t.number >= 0 {
		m.stamps[t.number] = stamp{stat.Ino, stat.Ctime}
	}
	return err
}

// makeFolders makes the folders above a path as theirs has them. What is in the way is mine, and goes aside.
func (m *merger) makeFolders(path string) error {
	m.forget()
	for at := 0; ; {
		slash := strings.IndexByte(path[at:], '/')
		if slash < 0 {
			return nil
		}
		at += slash
		t := &target{path: path[:at]}
		at++
		if err := m.stat(t); err != nil {
			return err
		}
		if t.isFolder() {
			continue
		}
		if t.folder < 0 {
			return errAgain
		}
		if t.exists {
			if err := m.aside(t.folder, t.name, t, displaced.Type); err != nil {
				return err
			}
			return errAgain
		}
		entry, number, err := m.folder(t.path)
		if err != nil {
			return err
		}
		if entry == nil || entry.Type != manifest.Folder {
			return manifest.ErrDamaged
		}
		t.number = number
		if err := m.makeFolder(t, entry); err != nil {
			return err
		}
	}
}

// replaceFolder makes a folder of mine a file.
func (m *merger) replaceFolder(t *target) error {
	if t.wasFolder() && !m.isLate {
		m.deferred = append(m.deferred, t.number) // what theirs has removed from it goes first
		return nil
	}
	if t.wasFolder() {
		err := unix.Unlinkat(t.folder, t.name, unix.AT_REMOVEDIR)
		if err == nil {
			m.forget()
			return errAgain
		}
		if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	if err := m.aside(t.folder, t.name, t, displaced.Type); err != nil {
		return err
	}
	return errAgain
}
