package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
)

const format = 1

// Root is the blob that names all others of a manifest.
type Root struct {
	Format   int       `json:"format"`
	Segments []Segment `json:"segments"`
	Packs    []PackRow `json:"packs"`
	// UsedBytes is the data of files, without holes; each file once, whatever its names.
	UsedBytes uint64 `json:"used_bytes"`
	// Files are entries that are not folders.
	Files   uint64 `json:"files"`
	Folders uint64 `json:"folders"`
}

// Segment is a chunk of entries.
type Segment struct {
	Digest  string `json:"digest"`
	Pack    uint32 `json:"pack"` // position in Packs
	Offset  uint64 `json:"offset"`
	Length  uint32 `json:"length"`
	Entries uint64 `json:"entries"`
}

// PackRow is a pack that the manifest needs.
type PackRow struct {
	Digest string `json:"digest"`
	Bytes  uint64 `json:"bytes"`
}

// Encode gives the bytes of the blob, always the same for the same root.
func (r *Root) Encode() ([]byte, error) {
	r.Format = format
	data, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}

// DecodeRoot reads the blob.
func DecodeRoot(data []byte) (*Root, error) {
	var root Root
	if err := json.NewDecoder(bytes.NewReader(data)).Decode(&root); err != nil {
		return nil, fmt.Errorf("the root of the manifest is not JSON as expected: %w", err)
	}
	if root.Format != format {
		return nil, fmt.Errorf("a manifest of format %d: this program knows format %d", root.Format, format)
	}
	for _, pack := range root.Packs {
		if _, err := ParseDigest(pack.Digest); err != nil {
			return nil, err
		}
	}
	for _, segment := range root.Segments {
		if _, err := ParseDigest(segment.Digest); err != nil {
			return nil, err
		}
		if int64(segment.Pack) >= int64(len(root.Packs)) || segment.Length > maxChunkBytes {
			return nil, ErrDamaged
		}
	}
	return &root, nil
}

const (
	cutMin    = 64
	cutMax    = 1024
	cutWeight = 1024 * 1024
	cutMask   = 255
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Segmenter decides where segments begin: at paths whose hash says so, so that a change elsewhere does not move the bounds, and
// before a segment has very many entries or bytes.
type Segmenter struct {
	count  int
	weight int
}

// Begins says whether the entry is the first of a new segment. It must be asked for each entry in order.
func (c *Segmenter) Begins(entry *Entry) bool {
	weight := len(entry.Path) + len(entry.Xattrs) + len(entry.Target) + 64
	if len(entry.Extents) > ListExtents {
		weight += 40 * (len(entry.Extents) / ListExtents)
	} else {
		weight += 40 * len(entry.Extents)
	}
	begins := c.count == 0 || c.count >= cutMax || c.weight+weight > cutWeight ||
		(c.count >= cutMin && crc32.Checksum([]byte(entry.Path), castagnoli)&cutMask == 0)
	if begins {
		c.count, c.weight = 0, 0
	}
	c.count++
	c.weight += weight
	return begins
}
