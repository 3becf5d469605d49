package commit

import (
	"errors"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/state"
	"releap/host/internal/volume/tree"
)

const skippedMax = 100

// Skipped is a path that a commit cannot record.
type Skipped struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// scan compares the tree with the base and writes the new index.
type scan struct {
	content   content
	base      *state.Index
	known     *known
	out       *state.IndexWriter
	segmenter manifest.Segmenter
	// A file with a ctime from here on may change once more without its ctime showing it.
	since manifest.Time
	old   state.Record
	// hasOld: old is the next record of the base.
	hasOld  bool
	changed uint64
	// Paths of the base that were not found.
	removed uint64
	files   uint64
	folders uint64
	bytes   uint64
	// Content that was read.
	newBytes uint64
	// What is known of each new segment.
	segments []segment
	hasLists bool
	skipped  []Skipped
	// Of all skipped.
	skippedCount uint64
	links        map[uint64]manifest.LinkID
	worn         map[uint32]bool
}

// segment says how much of a new segment is of one segment of the base, unchanged.
type segment struct {
	records uint64
	old     uint32
	isOld   bool
}

func (s *scan) loadKnown() (*known, error) { return s.known, s.known.load(s.base) }

// knownFor gives what is known without reading the base for it, as long as little is new: storing that again costs less.
func (s *scan) knownFor(bytes uint64) (*known, error) {
	if s.known.loaded || s.newBytes+bytes > littleBytes {
		return s.loadKnown()
	}
	return s.known, nil
}

const littleBytes = 256 * 1024

func (s *scan) next() (err error) {
	s.hasOld, err = s.base.Next(&s.old)
	return err
}

// visit takes the items of a walk.
func (s *scan) visit(item *tree.Item) error {
	for s.hasOld && manifest.Compare(s.old.Path, item.Path) < 0 {
		s.changed++
		s.removed++
		if err := s.next(); err != nil {
			return err
		}
	}
	var old *state.Record
	if s.hasOld && s.old.Path == item.Path {
		old = &s.old
	}
	if err := s.compare(item, old); err != nil {
		return &tree.PathError{Path: item.Path, Err: err}
	}
	if old == nil {
		return nil
	}
	return s.next()
}

// end counts what the base has after the last item.
func (s *scan) end() error {
	for s.hasOld {
		s.changed++
		s.removed++
		if err := s.next(); err != nil {
			return err
		}
	}
	return nil
}

func (s *scan) skip(path, reason string) {
	s.skippedCount++
	if len(s.skipped) < skippedMax {
		s.skipped = append(s.skipped, Skipped{tree.Printable(path), reason})
	}
}

func (s *scan) compare(item *tree.Item, old *state.Record) error {
	if item.Refused != "" {
		s.skip(item.Path, item.Refused)
		if old != nil {
			s.changed++
		}
		return nil
	}
	record := old
	if old == nil || !unchanged(old, &item.Stat) || s.isLink(&item.Stat) {
		var err error
		if record, err = s.read(item, old); err != nil {
			return err
		}
		if record == nil { // removed meanwhile
			if old != nil {
				s.changed++
			}
			return nil
		}
		if old == nil || !manifest.Same(&old.Entry, &record.Entry) {
			s.changed++
		}
	} else if len(s.worn) > 0 {
		var err error
		if record, err = s.repack(item, record); err != nil {
			return err
		}
	}
	return s.add(record)
}

func (s *scan) add(record *state.Record) error {
	if record.Type == manifest.Folder {
		s.folders++
	} else {
		s.files++
	}
	s.bytes += record.DataBytes()
	if record.Linked {
		s.links[record.Ino] = manifest.LinkOf(record.Path)
	}
	begins := s.segmenter.Begins(&record.Entry)
	s.count(record, begins)
	return s.out.Add(record, begins)
}

func (s *scan) count(record *state.Record, begins bool) {
	s.hasLists = s.hasLists || len(record.Extents) > manifest.ListExtents
	isOld := record == &s.old
	if begins {
		s.segments = append(s.segments, segment{isOld: isOld})
		if isOld {
			s.segments[len(s.segments)-1].old = s.base.Current()
		}
	}
	last := &s.segments[len(s.segments)-1]
	last.records++
	last.isOld = last.isOld && isOld && last.old == s.base.Current()
}

// unchanged says that nothing of the file needs to be read.
func unchanged(old *state.Record, stat *tree.Stat) bool {
	return old.IsUnchanged(stat) && old.Linked == isLinked(stat)
}

func isLinked(stat *tree.Stat) bool { return stat.Nlink > 1 && stat.Type() == manifest.File }

func (s *scan) isLink(stat *tree.Stat) bool {
	_, ok := s.links[stat.Ino]
	return ok && isLinked(stat)
}

// read gives the record of something that is new or changed; nil if it was removed.
func (s *scan) read(item *tree.Item, old *state.Record) (*state.Record, error) {
	record := &state.Record{}
	record.Path, record.Type = item.Path, item.Stat.Type()
	fill(record, &item.Stat)
	var err error
	switch record.Type {
	case manifest.File:
		err = s.file(item, record)
	case manifest.Symlink:
		record.Target, err = target(item)
	}
	if err == nil && record.Type != manifest.Link {
		err = s.xattrs(item, record)
	}
	if tree.IsGone(err) || errors.Is(err, errOther) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	record.Unsure = record.Unsure || !before(record.Ctime, s.since)
	return record, nil
}

var errOther = errors.New("it has become something else")

func fill(record *state.Record, stat *tree.Stat) {
	record.Mode, record.UID, record.GID, record.Mtime = stat.Mode&0o7777, stat.UID, stat.GID, stat.Mtime
	record.Ino, record.Ctime, record.Linked = stat.Ino, stat.Ctime, isLinked(stat)
	if record.Type == manifest.File {
		record.Size = uint64(stat.Size)
	}
}

func before(a, b manifest.Time) bool { return a.Sec < b.Sec || (a.Sec == b.Sec && a.Nsec < b.Nsec) }

func (s *scan) file(item *tree.Item, record *state.Record) error {
	if s.isLink(&item.Stat) {
		s.link(record, &item.Stat)
		return nil
	}
	fd, err := tree.OpenFile(item.Parent, item.Name)
	if tree.IsOther(err) {
		return errOther
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	stat, err := tree.Fstat(fd)
	if err != nil {
		return err
	}
	if stat.Type() != manifest.File || stat.Dev != item.Stat.Dev {
		return errOther
	}
	if s.isLink(&stat) {
		s.link(record, &stat)
		return nil
	}
	if stat.Size == 0 {
		fill(record, &stat)
		return nil
	}
	known, err := s.knownFor(uint64(stat.Size))
	if err != nil {
		return err
	}
	moved, err := known.inodes.find(stat.Ino)
	if err != nil {
		return err
	}
	if moved != nil && moved.IsUnchanged(&stat) {
		fill(record, &stat)
		record.Extents = moved.Extents
		return nil
	}
	stat, extents, settled, err := s.content.file(fd)
	if err != nil {
		return err
	}
	fill(record, &stat)
	record.Extents, record.Unsure = extents, !settled
	s.newBytes += record.DataBytes()
	return nil
}

func (s *scan) link(record *state.Record, stat *tree.Stat) {
	entry := manifest.Entry{Path: record.Path, Type: manifest.Link, Link: s.links[stat.Ino]}
	*record = state.Record{Entry: entry, Ino: stat.Ino, Ctime: stat.Ctime}
}

func target(item *tree.Item) (string, error) {
	buffer := make([]byte, manifest.MaxTarget+1)
	n, err := unix.Readlinkat(item.Parent, item.Name, buffer)
	if errors.Is(err, unix.EINVAL) {
		return "", errOther
	}
	if err == nil && n > manifest.MaxTarget {
		err = errors.New("the target of this symbolic link is too long")
	}
	if err != nil {
		return "", err
	}
	return string(buffer[:n]), nil
}

func (s *scan) xattrs(item *tree.Item, record *state.Record) error {
	parent, name := item.Parent, item.Name
	if item.Folder >= 0 {
		parent, name = item.Folder, "."
	}
	block, err := tree.Xattrs(parent, name)
	if errors.Is(err, tree.ErrXattrs) {
		s.skip(item.Path, err.Error()+": they are not recorded")
		return nil
	}
	if err != nil {
		return err
	}
	if len(block) <= manifest.InlineXattrs {
		record.Xattrs = block
		return nil
	}
	record.XattrRefs, err = s.content.block(block)
	return err
}
