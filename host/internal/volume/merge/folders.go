package merge

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/limbo"
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/tree"
)

// folderOf makes the path a folder.
func (m *merger) folderOf(s *spot) error {
	if s.isFolder() {
		return m.folderAttributes(s)
	}
	if s.exists && s.wasFolder() {
		return nil // what theirs has changed in it moves mine aside
	}
	if s.exists {
		content, attributes, err := m.isOld(s)
		if err != nil {
			return err
		}
		if content && attributes {
			err = m.takeOut(s)
		} else {
			err = m.aside(s.folder, s.name, s, limbo.Type)
		}
		if err != nil {
			return err
		}
		return errAgain
	}
	if s.wasFolder() {
		return nil // mine has removed it; what theirs has changed in it makes it again
	}
	if s.folder < 0 {
		if err := m.makeFolders(s.path); err != nil {
			return err
		}
		return errAgain
	}
	m.applied++
	return m.makeFolder(s, s.new)
}

func (m *merger) makeFolder(s *spot, entry *manifest.Entry) error {
	if err := unix.Mkdirat(s.folder, s.name, 0o700); err != nil {
		return err
	}
	fd, err := tree.OpenFolder(s.folder, s.name)
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
	m.folders = append(m.folders, folderTime{s.path, entry.Mtime})
	stat, err := tree.Fstat(fd)
	if s.number >= 0 {
		m.stamps[s.number] = stamp{stat.Ino, stat.Ctime}
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
		s := &spot{path: path[:at]}
		at++
		if err := m.look(s); err != nil {
			return err
		}
		if s.isFolder() {
			continue
		}
		if s.folder < 0 {
			return errAgain
		}
		if s.exists {
			if err := m.aside(s.folder, s.name, s, limbo.Type); err != nil {
				return err
			}
			return errAgain
		}
		entry, number, err := m.folder(s.path)
		if err != nil {
			return err
		}
		if entry == nil || entry.Type != manifest.Folder {
			return manifest.ErrDamaged
		}
		s.number = number
		if err := m.makeFolder(s, entry); err != nil {
			return err
		}
	}
}

// replaceFolder makes a folder of mine a file.
func (m *merger) replaceFolder(s *spot) error {
	if s.wasFolder() && !m.isLate {
		m.deferred = append(m.deferred, s.number) // what theirs has removed from it goes first
		return nil
	}
	if s.wasFolder() {
		err := unix.Unlinkat(s.folder, s.name, unix.AT_REMOVEDIR)
		if err == nil {
			m.forget()
			return errAgain
		}
		if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	if err := m.aside(s.folder, s.name, s, limbo.Type); err != nil {
		return err
	}
	return errAgain
}
