package merge

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/pack"
	"releap/host/internal/volume/tree"
)

// Files of a merge in the folder of displaced files are `STAMP.NUMBER.INODE`: the number of the change, and the inode that the file has before it is swapped
// with that of the tree. So a name whose file has another inode is something of mine.
func (j *journal) name(number int, ino uint64) string {
	return fmt.Sprintf("%s.%d.%d", j.head.Stamp, number, ino)
}

// unfinished is the name of a file that is being written.
func (j *journal) unfinished(number int) string {
	return fmt.Sprintf("%s.%d.%s", j.head.Stamp, number, partial)
}

func (j *journal) parse(name string) (number int, ino uint64, ok bool) {
	parts := strings.Split(name, ".")
	if len(parts) != 3 || parts[0] != j.head.Stamp {
		return 0, 0, false
	}
	if parts[2] == partial {
		parts[2] = "0"
	}
	number, err := strconv.Atoi(parts[1])
	if err != nil || number < 0 || number >= j.head.Paths {
		return 0, 0, false
	}
	ino, err = strconv.ParseUint(parts[2], 10, 64)
	return number, ino, err == nil
}

const partial = "partial"

// stageAll writes the files of theirs beside the tree, while the tree still has all content that they share with it. What it has
// not is written pack by pack.
func (m *merger) stageAll() error {
	m.staged = make([]uint64, len(m.changes))
	groups := map[manifest.LinkID]bool{}
	var rows []pack.Row
	for i := range m.changes {
		v, err := m.view(i)
		if err != nil {
			return err
		}
		if v.new == nil || (v.new.Type != manifest.File && v.new.Type != manifest.Link) {
			continue
		}
		whole, group, err := m.theirs(v.new)
		if err != nil {
			return err
		}
		if group != nil {
			if groups[*group] {
				continue
			}
			groups[*group] = true
		}
		needed, err := m.isNeeded(&v, whole)
		if err == nil && needed {
			rows, err = m.begin(i, whole, rows)
		}
		if err != nil {
			return &tree.PathError{Path: v.path, Err: err}
		}
	}
	if err := m.reader.Scatter(rows, m.described, nil, m.fill); err != nil {
		return err
	}
	m.closeFilled()
	for _, number := range m.unfinished {
		v, err := m.view(int(number))
		if err != nil {
			return err
		}
		whole, _, err := m.theirs(v.new)
		if err == nil {
			_, err = m.finish(int(number), whole)
		}
		if err != nil {
			return &tree.PathError{Path: v.path, Err: err}
		}
	}
	m.unfinished = nil
	return nil
}

// isNeeded: the content is new, and an interrupted merge has not brought it already.
func (m *merger) isNeeded(v *view, whole *manifest.Entry) (bool, error) {
	old, err := m.before(v.old)
	if err != nil {
		return false, err
	}
	if old != nil && manifest.SameContent(&old.Entry, whole) {
		return false, nil
	}
	folder, name, err := tree.OpenParent(m.root, v.path)
	if tree.IsGone(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(folder)
	stat, err := tree.Lstat(folder, name)
	if tree.IsGone(err) {
		return true, nil
	}
	if err != nil || stat.Type() != manifest.File || stat.Mtime != whole.Mtime {
		return true, err
	}
	has, err := sameContent(folder, name, &stat, whole)
	if tree.IsGone(err) {
		return true, nil
	}
	return !has, err
}

// begin makes a file of which the content that the tree has not is missing, and appends that to rows.
func (m *merger) begin(number int, entry *manifest.Entry, rows []pack.Row) ([]pack.Row, error) {
	before := len(rows)
	err := m.writeFile(m.journal.unfinished(number), entry, func(i int) error {
		rows = append(rows, pack.Row{Pack: entry.Extents[i].Ref.Pack, Group: uint32(number), Part: int32(i)})
		return nil
	})
	for i := range entry.XattrRefs {
		rows = append(rows, pack.Row{Pack: entry.XattrRefs[i].Pack, Group: uint32(number), Part: int32(-1 - i)})
	}
	if err == nil && len(rows) == before {
		_, err = m.finish(number, entry)
		return rows, err
	}
	m.unfinished = append(m.unfinished, uint32(number))
	return rows, err
}

// fill writes one chunk.
func (m *merger) fill(row *pack.Row) error {
	v, err := m.view(int(row.Group))
	if err != nil {
		return err
	}
	whole, _, err := m.theirs(v.new)
	if err != nil {
		return err
	}
	ref := &manifest.Ref{}
	if row.Part < 0 {
		ref = &whole.XattrRefs[-1-row.Part]
	} else {
		ref = &whole.Extents[row.Part].Ref
	}
	if m.buffer, err = m.source.Chunk(ref, m.buffer); err != nil {
		return err
	}
	if row.Part < 0 {
		return m.kept.Keep(ref.Digest, m.buffer)
	}
	if m.filled < 0 || m.filledNumber != row.Group {
		m.closeFilled()
		if m.filled, err = tree.OpenWritable(m.displaced, m.journal.unfinished(int(row.Group))); err != nil {
			return &tree.PathError{Path: v.path, Err: err}
		}
		m.filledNumber = row.Group
	}
	if err := tree.WriteAt(m.filled, m.buffer, whole.Extents[row.Part].Offset); err != nil {
		return &tree.PathError{Path: v.path, Err: err}
	}
	return nil
}

func (m *merger) closeFilled() {
	if m.filled >= 0 {
		unix.Close(m.filled)
		m.filled = -1
	}
}

// xattrs reads the attributes of an entry of theirs, or of a mixture.
func (m *merger) xattrs(entry *manifest.Entry) ([]byte, error) {
	for i := range entry.XattrRefs {
		if !m.kept.Has(entry.XattrRefs[i].Digest) {
			return m.source.Xattrs(entry)
		}
	}
	return manifest.ReadXattrs(entry, m.kept)
}

// stage makes the file, link, FIFO or whiteout in the folder of displaced files and gives its name. A hard link is made of from, if that is not nil.
func (m *merger) stage(number int, entry *manifest.Entry, from *anchor) (string, error) {
	if m.staged[number] != 0 && from == nil {
		return m.journal.name(number, m.staged[number]), nil
	}
	name := m.journal.unfinished(number)
	if err := tree.Remove(m.displaced, name); err != nil {
		return "", err
	}
	var err error
	switch {
	case from != nil:
		err = m.linkTo(from, name)
	case entry.Type == manifest.File:
		err = m.writeFile(name, entry, nil)
	default:
		err = tree.CreateSpecial(m.displaced, name, entry)
	}
	if err != nil {
		_ = tree.Remove(m.displaced, name)
		return "", err
	}
	if from != nil {
		entry = nil
	}
	if name, err = m.finish(number, entry); err == nil && entry != nil && entry.Type == manifest.File {
		err = m.fsync(name)
	}
	return name, err
}

// fsync makes a file of that folder durable.
func (m *merger) fsync(name string) error {
	fd, err := tree.OpenFile(m.displaced, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fsync(fd)
}

// finish gives a file that is written its attributes, if entry is not nil, and its name.
func (m *merger) finish(number int, entry *manifest.Entry) (name string, err error) {
	unfinished := m.journal.unfinished(number)
	if entry != nil {
		var block []byte
		if block, err = m.xattrs(entry); err == nil {
			err = tree.SetAttributes(m.displaced, unfinished, entry, block)
		}
	}
	var stat tree.Stat
	if err == nil {
		stat, err = tree.Lstat(m.displaced, unfinished)
	}
	if err == nil {
		name = m.journal.name(number, stat.Ino)
		err = unix.Renameat(m.displaced, unfinished, m.displaced, name)
	}
	if err != nil {
		_ = tree.Remove(m.displaced, unfinished)
		return "", err
	}
	m.staged[number] = stat.Ino
	return name, nil
}

func (m *merger) linkTo(from *anchor, name string) error {
	folder, first, err := tree.OpenParent(m.root, from.path)
	if err != nil {
		return err
	}
	defer unix.Close(folder)
	if err := unix.Linkat(folder, first, m.displaced, name, 0); err != nil {
		return err
	}
	stat, err := tree.Lstat(m.displaced, name)
	if err == nil && stat.Ino != from.ino {
		err = errAgain
	}
	return err
}

// writeFile takes content from the tree where it has it. Other extents are given to lacking, or read from their packs.
func (m *merger) writeFile(name string, entry *manifest.Entry, lacking func(extent int) error) error {
	fd, err := tree.CreateFile(m.displaced, name, entry.Size)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for i := range entry.Extents {
		extent := &entry.Extents[i]
		done, err := m.copyLocal(fd, extent)
		switch {
		case err != nil || done:
		case lacking != nil:
			err = lacking(i)
		default:
			if m.buffer, err = m.source.Chunk(&extent.Ref, m.buffer); err == nil {
				err = tree.WriteAt(fd, m.buffer, extent.Offset)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeStaged removes files that were not swapped in.
func (m *merger) removeStaged() {
	m.closeFilled()
	for _, number := range m.unfinished {
		_ = tree.Remove(m.displaced, m.journal.unfinished(int(number)))
	}
	for number, ino := range m.staged {
		if ino == 0 {
			continue
		}
		name := m.journal.name(number, ino)
		if stat, err := tree.Lstat(m.displaced, name); err == nil && stat.Ino == ino {
			_ = tree.Remove(m.displaced, name)
		}
	}
}
