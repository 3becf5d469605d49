package merge

import (
	"crypto/sha256"
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/tree"
)

// matches compares something in the tree with an entry.
func matches(folder int, name string, stat *tree.Stat, entry *manifest.Entry) (content, attributes bool, err error) {
	if stat.Type() != entry.Type {
		return false, false, nil
	}
	if content, err = sameContent(folder, name, stat, entry); err != nil {
		return false, false, err
	}
	attributes = stat.Mode&0o7777 == entry.Mode && stat.UID == entry.UID && stat.GID == entry.GID
	if attributes {
		block, err := xattrsOf(folder, name)
		if err != nil {
			return false, false, err
		}
		attributes = isBlock(block, entry)
	}
	return content, attributes, nil
}

// xattrsOf reads the block of attributes. Too many to be recorded are as none.
func xattrsOf(folder int, name string) ([]byte, error) {
	block, err := tree.Xattrs(folder, name)
	if errors.Is(err, tree.ErrXattrs) {
		return nil, nil
	}
	return block, err
}

func isBlock(block []byte, entry *manifest.Entry) bool {
	if entry.XattrRefs == nil {
		return string(block) == string(entry.Xattrs)
	}
	for i := range entry.XattrRefs {
		length := int(entry.XattrRefs[i].Length)
		if length > len(block) || sha256.Sum256(block[:length]) != entry.XattrRefs[i].Digest {
			return false
		}
		block = block[length:]
	}
	return len(block) == 0
}

func sameContent(folder int, name string, stat *tree.Stat, entry *manifest.Entry) (bool, error) {
	switch entry.Type {
	case manifest.Symlink:
		buffer := make([]byte, manifest.MaxTarget+1)
		n, err := unix.Readlinkat(folder, name, buffer)
		if errors.Is(err, unix.EINVAL) {
			return false, nil
		}
		return err == nil && string(buffer[:n]) == entry.Target, err
	case manifest.File:
		if uint64(stat.Size) != entry.Size {
			return false, nil
		}
		fd, err := tree.OpenFile(folder, name)
		if tree.IsOther(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		defer unix.Close(fd)
		return fileHas(fd, entry)
	}
	return true, nil
}

// fileHas reads an open file: it has the extents, and zeros elsewhere, whatever is a hole.
func fileHas(fd int, entry *manifest.Entry) (bool, error) {
	stat, err := tree.Fstat(fd)
	if err != nil || stat.Type() != manifest.File || uint64(stat.Size) != entry.Size {
		return false, err
	}
	length := uint64(manifest.ChunkBytes)
	if entry.Size < length { // most files are small
		length = entry.Size
	}
	buffer := make([]byte, length)
	at := uint64(0)
	for i := range entry.Extents {
		extent := &entry.Extents[i]
		if same, err := isZero(fd, at, extent.Offset, buffer); !same || err != nil {
			return false, err
		}
		if uint32(len(buffer)) < extent.Ref.Length {
			buffer = make([]byte, extent.Ref.Length)
		}
		chunk := buffer[:extent.Ref.Length]
		if err := tree.ReadAt(fd, chunk, extent.Offset); err != nil || sha256.Sum256(chunk) != extent.Ref.Digest {
			return false, ignoreEOF(err)
		}
		at = extent.Offset + uint64(extent.Ref.Length)
	}
	return isZero(fd, at, entry.Size, buffer)
}

// isZero reads the data between two positions.
func isZero(fd int, at, end uint64, buffer []byte) (bool, error) {
	for at < end {
		data, hole, err := tree.NextData(fd, at, end)
		if err != nil {
			return false, err
		}
		for data < hole {
			part := buffer
			if uint64(len(part)) > hole-data {
				part = part[:hole-data]
			}
			if err := tree.ReadAt(fd, part, data); err != nil {
				return false, ignoreEOF(err)
			}
			for _, char := range part {
				if char != 0 {
					return false, nil
				}
			}
			data += uint64(len(part))
		}
		at = hole
	}
	return true, nil
}

// ignoreEOF: a file that was truncated is another one, which is no failure.
func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
