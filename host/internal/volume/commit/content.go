package commit

import (
	"crypto/sha256"
	"errors"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/pack"
	"releap/host/internal/volume/tree"
)

const (
	// A hole shorter than this is written as zeros, where there is data on both sides of it in one chunk.
	shortHole = 16 * 1024
	// A file up to this size that has not changed lately is read without a still copy.
	cloneFrom = 128 * 1024
	// How often, and how many bytes in total, a file is read again because it has changed meanwhile.
	rereads      = 4
	rereadsBytes = 64 * 1024 * 1024
)

// content reads files and stores their chunks.
type content struct {
	root    int
	packs   *pack.Writer
	known   func(bytes uint64) (*known, error)
	noClone bool
}

// file reads an open file up to its size at the first fstat. It gives how the file looked before it was read; settled says that it
// has not changed meanwhile, or that the content is of one moment.
func (c *content) file(fd int) (stat tree.Stat, extents []manifest.Extent, settled bool, err error) {
	read := uint64(0)
	for attempt := 0; ; attempt++ {
		if stat, err = tree.Fstat(fd); err != nil {
			return stat, nil, false, err
		}
		size := uint64(stat.Size)
		if copied := c.clone(fd, size, attempt > 0); copied >= 0 {
			extents, err = c.extents(copied, size)
			unix.Close(copied)
			return stat, extents, true, err
		}
		if extents, err = c.extents(fd, size); err != nil {
			return stat, nil, false, err
		}
		after, err := tree.Fstat(fd)
		if err != nil {
			return stat, nil, false, err
		}
		if after.Ctime == stat.Ctime && after.Size == stat.Size && after.Mtime == stat.Mtime {
			return stat, extents, true, nil
		}
		if read += size; attempt >= rereads || read >= rereadsBytes {
			return stat, extents, false, nil
		}
	}
}

// clone makes a still copy without a name, or gives -1.
func (c *content) clone(fd int, size uint64, changing bool) int {
	if c.noClone || size == 0 || (size < cloneFrom && !changing) {
		return -1
	}
	copied, err := unix.Openat(c.root, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1
	}
	if err = unix.IoctlFileClone(copied, fd); err == nil {
		return copied
	}
	unix.Close(copied)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOTTY) {
		c.noClone = true
	}
	return -1
}

// extents stores the data of a file, without its holes.
func (c *content) extents(fd int, size uint64) ([]manifest.Extent, error) {
	pending := &pendingChunk{content: c, fd: fd}
	defer pending.release()
	for at := uint64(0); at < size; {
		data, hole, err := tree.NextData(fd, at, size)
		if err != nil {
			return nil, err
		}
		if data >= size {
			break
		}
		for data < hole {
			end := (data/manifest.ChunkBytes + 1) * manifest.ChunkBytes
			if end > hole {
				end = hole
			}
			whole, err := pending.add(data, end)
			if err != nil {
				return nil, err
			}
			if !whole { // it was truncated
				hole, size = 0, 0
			}
			data = end
		}
		at = hole
	}
	err := pending.flush()
	return pending.extents, err
}

// pendingChunk gathers data until the next chunk begins.
type pendingChunk struct {
	content *content
	fd      int
	buffer  []byte
	start   uint64
	length  uint64
	extents []manifest.Extent
}

// add reads data that lies within one chunk. False if the file ends before.
func (p *pendingChunk) add(start, end uint64) (bool, error) {
	if p.length > 0 {
		before := p.start + p.length
		if p.start/manifest.ChunkBytes != start/manifest.ChunkBytes || start-before > shortHole {
			if err := p.flush(); err != nil {
				return false, err
			}
		} else {
			hole := p.buffer[p.length : start-p.start]
			for i := range hole {
				hole[i] = 0
			}
			p.length = start - p.start
		}
	}
	if p.buffer == nil {
		p.buffer = p.content.packs.Buffer()
	}
	if p.length == 0 {
		p.start = start
	}
	for start < end {
		n, err := unix.Pread(p.fd, p.buffer[p.length:p.length+end-start], int64(start))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return false, err
		}
		p.length += uint64(n)
		start += uint64(n)
	}
	return true, nil
}

// flush stores the chunk.
func (p *pendingChunk) flush() error {
	if p.length == 0 {
		return nil
	}
	chunk := p.buffer[:p.length]
	extent := manifest.Extent{Offset: p.start}
	ref, kept, err := p.content.store(chunk)
	if err != nil {
		return err
	}
	if kept {
		p.buffer = nil
	}
	p.length = 0
	extent.Ref = ref
	p.extents = append(p.extents, extent)
	return nil
}

func (p *pendingChunk) release() {
	if p.buffer != nil {
		p.content.packs.Release(p.buffer)
	}
}

// store finds or writes a chunk; kept says that the buffer was taken.
func (c *content) store(chunk []byte) (ref manifest.Ref, kept bool, err error) {
	digest := manifest.Digest(sha256.Sum256(chunk))
	known, err := c.known(uint64(len(chunk)))
	if err != nil {
		return ref, false, err
	}
	if found := known.chunks.find(digest); found != nil {
		return *found, false, nil
	}
	ref, err = c.packs.Add(digest, chunk)
	if err == nil {
		known.chunks.add(ref)
	}
	return ref, true, err
}

// block stores a long block of extended attributes.
func (c *content) block(block []byte) ([]manifest.Ref, error) {
	var refs []manifest.Ref
	for len(block) > 0 {
		buffer := c.packs.Buffer()
		n := copy(buffer, block)
		ref, kept, err := c.store(buffer[:n])
		if err != nil {
			return nil, err
		}
		if !kept {
			c.packs.Release(buffer)
		}
		refs = append(refs, ref)
		block = block[n:]
	}
	return refs, nil
}
