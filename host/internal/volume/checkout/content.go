package checkout

import (
	"crypto/sha256"
	"io"

	"golang.org/x/sys/unix"

	"releap/host/internal/failpoint"
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/pack"
	"releap/host/internal/volume/tree"
)

// content writes chunks into the files of a skeleton. Long extended attributes are kept aside, for a pack is read once.
type content struct {
	source *manifest.Source
	reader *pack.Reader
	paths  *tree.Resolver
	buffer []byte
	// The file that was written last.
	fd      int
	segment uint32
	item    uint32
	// The segment that was read last.
	entries []manifest.Entry
	read    uint32
	aside   *pack.SpillFile
}

func newContent(root int, source *manifest.Source, reader *pack.Reader, folder string) (*content, error) {
	aside, err := pack.NewSpillFile(folder)
	if err != nil {
		return nil, err
	}
	return &content{source: source, reader: reader, paths: tree.NewResolver(root), fd: -1, aside: aside}, nil
}

func (c *content) close() {
	c.closeFile()
	c.paths.Close()
	c.aside.Close()
}

func (c *content) closeFile() {
	if c.fd >= 0 {
		unix.Close(c.fd)
		c.fd = -1
	}
}

// entry gives the entry of a row, with its extents.
func (c *content) entry(row *pack.Row) (*manifest.Entry, error) {
	if c.entries == nil || c.read != row.Group {
		entries, err := c.source.SegmentAlone(int(row.Group))
		if err != nil {
			return nil, err
		}
		c.entries, c.read = entries, row.Group
	}
	entry := &c.entries[row.Item]
	_, err := c.source.Extents(entry)
	return entry, err
}

func (c *content) place(row *pack.Row) error {
	entry, err := c.entry(row)
	if err != nil {
		return err
	}
	if row.Part < 0 {
		ref := &entry.XattrRefs[-1-row.Part]
		if c.buffer, err = c.source.Chunk(ref, c.buffer); err != nil {
			return err
		}
		return c.aside.Keep(ref.Digest, c.buffer)
	}
	if err := c.open(row, entry); err != nil {
		return &tree.PathError{Path: entry.Path, Err: err}
	}
	extent := &entry.Extents[row.Part]
	if c.buffer, err = c.source.Chunk(&extent.Ref, c.buffer); err != nil {
		return err
	}
	if err := tree.WriteAt(c.fd, c.buffer, extent.Offset); err != nil {
		return &tree.PathError{Path: entry.Path, Err: err}
	}
	failpoint.Reach("voltree-placed")
	return nil
}

func (c *content) open(row *pack.Row, entry *manifest.Entry) error {
	if c.fd >= 0 && c.segment == row.Group && c.item == row.Item {
		return nil
	}
	c.closeFile()
	folder, name, err := c.paths.Parent(entry.Path)
	if err != nil {
		return err
	}
	c.fd, err = tree.OpenWritable(folder, name)
	c.segment, c.item = row.Group, row.Item
	return err
}

// has says that an interrupted checkout has brought the content of these rows.
func (c *content) has(rows []pack.Row) (bool, error) {
	for i := range rows {
		row := &rows[i]
		entry, err := c.entry(row)
		if err != nil {
			return false, err
		}
		if row.Part < 0 {
			return false, nil
		}
		if err := c.open(row, entry); err != nil {
			return false, &tree.PathError{Path: entry.Path, Err: err}
		}
		extent := &entry.Extents[row.Part]
		if uint32(cap(c.buffer)) < extent.Ref.Length {
			c.buffer = make([]byte, extent.Ref.Length)
		}
		chunk := c.buffer[:extent.Ref.Length]
		if err := tree.ReadAt(c.fd, chunk, extent.Offset); err != nil && err != io.EOF {
			return false, &tree.PathError{Path: entry.Path, Err: err}
		}
		if sha256.Sum256(chunk) != extent.Ref.Digest {
			return false, nil
		}
	}
	return true, nil
}
