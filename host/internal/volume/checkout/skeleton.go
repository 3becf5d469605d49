package checkout

import (
	"errors"

	"golang.org/x/sys/unix"

	"releap/host/internal/failpoint"
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/pack"
	"releap/host/internal/volume/tree"
)

// skeleton makes the tree with everything but content and attributes: files are holes of their length. It lists what belongs where.
type skeleton struct {
	source *manifest.Source
	root   int
	// isResumed: what is there was left by an interrupted checkout of the same manifest.
	isResumed bool
	firsts    map[manifest.LinkID]string
	rows      []pack.Row
	// Packs with extents of files that have very many.
	lists   map[uint32]bool
	segment uint32
	item    uint32
}

func (s *skeleton) make() error {
	return descend(s.root, s.source, s, func(number int) {
		s.segment, s.item = uint32(number), 0
		failpoint.Reach("voltree-segment")
	})
}

func (s *skeleton) entered(folder *frame) error {
	names, err := tree.Names(folder.fd)
	folder.left = make(map[string]bool, len(names))
	for _, name := range names {
		folder.left[name] = true
	}
	s.needs(&folder.entry)
	return err
}

func (s *skeleton) enter(parent *frame, name string, _ *manifest.Entry) (int, error) {
	if parent.left[name] {
		delete(parent.left, name)
		fd, err := tree.OpenFolder(parent.fd, name)
		if err == nil {
			return fd, nil
		}
		if !tree.IsGone(err) {
			return -1, err
		}
		if err := tree.Remove(parent.fd, name); err != nil {
			return -1, err
		}
	}
	if err := unix.Mkdirat(parent.fd, name, 0o700); err != nil {
		return -1, err
	}
	return tree.OpenFolder(parent.fd, name)
}

// leave removes what does not belong into the folder.
func (s *skeleton) leave(folder *frame) error {
	for name := range folder.left {
		if err := tree.Remove(folder.fd, name); err != nil {
			return err
		}
	}
	return nil
}

func (s *skeleton) other(folder *frame, name string, entry *manifest.Entry) error {
	if entry.Linked {
		s.firsts[manifest.LinkOf(entry.Path)] = entry.Path
	}
	lists, err := s.source.Extents(entry)
	if err != nil {
		return err
	}
	for i := range lists {
		s.lists[lists[i].Pack] = true
	}
	s.needs(entry)
	if folder.left[name] {
		delete(folder.left, name)
		if s.isResumed && entry.Type == manifest.File {
			if stat, err := tree.Lstat(folder.fd, name); err != nil || (stat.Type() == manifest.File && uint64(stat.Size) == entry.Size) {
				return err
			}
		}
		if err := tree.Remove(folder.fd, name); err != nil {
			return err
		}
	}
	switch entry.Type {
	case manifest.Link:
		return s.link(folder.fd, name, entry)
	case manifest.File:
		fd, err := tree.CreateFile(folder.fd, name, entry.Size)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	return tree.CreateSpecial(folder.fd, name, entry)
}

// needs lists the chunks of the next entry.
func (s *skeleton) needs(entry *manifest.Entry) {
	row := pack.Row{Group: s.segment, Item: s.item}
	s.item++
	for i := range entry.Extents {
		row.Pack, row.Part = entry.Extents[i].Ref.Pack, int32(i)
		s.rows = append(s.rows, row)
	}
	for i := range entry.XattrRefs {
		row.Pack, row.Part = entry.XattrRefs[i].Pack, int32(-1-i)
		s.rows = append(s.rows, row)
	}
}

func (s *skeleton) link(folder int, name string, entry *manifest.Entry) error {
	path, ok := s.firsts[entry.Link]
	if !ok {
		return errors.New("a manifest has a hard link to a file that is not before it")
	}
	parent, first, err := tree.OpenParent(s.root, path)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	return unix.Linkat(parent, first, folder, name, 0)
}
