package merge

import (
	"crypto/sha256"
	"encoding/binary"
	"sort"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/state"
	"releap/host/internal/volume/tree"
)

// local finds chunks of changed files in files of the tree that look as in the base. It knows eight bytes of their digests: what is
// found is verified.
type local map[uint64]place

// place is where a chunk is: an extent of a record of the base.
type place struct {
	at     position
	extent uint32
}

func brief(digest *manifest.Digest) uint64 { return binary.LittleEndian.Uint64(digest[:]) }

func (p *plan) findLocal(root int) (local, error) {
	var wanted []uint64
	for number := range p.changes {
		if p.changes[number].newIsOld || p.changes[number].new == nowhere {
			continue
		}
		entry, err := p.newAt(p.changes[number].new)
		if err != nil {
			return nil, err
		}
		for i := range entry.Extents {
			wanted = append(wanted, brief(&entry.Extents[i].Ref.Digest))
		}
	}
	found := local{}
	if len(wanted) == 0 {
		return found, nil
	}
	sort.Slice(wanted, func(i, j int) bool { return wanted[i] < wanted[j] })
	paths := tree.NewResolver(root)
	defer paths.Close()
	return found, p.index.Each(func(at position, record *state.Record) error {
		seen := false
		for i := range record.Extents {
			digest := brief(&record.Extents[i].Ref.Digest)
			if next := sort.Search(len(wanted), func(i int) bool { return wanted[i] >= digest }); next == len(wanted) || wanted[next] != digest {
				continue
			}
			if _, ok := found[digest]; ok {
				continue
			}
			if !seen && !isUnchanged(paths, record) {
				return nil
			}
			seen = true
			found[digest] = place{at, uint32(i)}
		}
		return nil
	})
}

func isUnchanged(paths *tree.Resolver, record *state.Record) bool {
	stat, err := paths.Lstat(record.Path)
	if err != nil {
		return false
	}
	// One that must be read again is likely what it was: its chunks are verified.
	sure := *record
	sure.Unsure = false
	return sure.IsUnchanged(&stat)
}

// copyLocal takes a chunk from a file of the tree, sharing its blocks where that is possible. False if it is not there any more.
func (m *merger) copyLocal(fd int, extent *manifest.Extent) (bool, error) {
	where, ok := m.local[brief(&extent.Ref.Digest)]
	if !ok {
		return false, nil
	}
	record, err := m.oldAt(where.at)
	if err != nil {
		return false, err
	}
	offset := record.Extents[where.extent].Offset
	if record.Extents[where.extent].Ref.Digest != extent.Ref.Digest {
		return false, nil
	}
	folder, name, err := tree.OpenParent(m.root, record.Path)
	if err != nil {
		return false, ignoreGone(err)
	}
	defer unix.Close(folder)
	from, err := tree.OpenFile(folder, name)
	if err != nil {
		return false, ignoreGone(err)
	}
	defer unix.Close(from)
	if stat, err := tree.Fstat(from); err != nil || stat.Type() != manifest.File {
		return false, err
	}
	if uint32(cap(m.buffer)) < extent.Ref.Length {
		m.buffer = make([]byte, extent.Ref.Length)
	}
	chunk := m.buffer[:extent.Ref.Length]
	// What was shared is a copy that stays as it is, so it is verified after.
	shared := unix.FileCloneRange{Src_fd: int64(from), Src_offset: offset, Src_length: uint64(extent.Ref.Length), Dest_offset: extent.Offset}
	if unix.IoctlFileCloneRange(fd, &shared) == nil {
		if err := tree.ReadAt(fd, chunk, extent.Offset); err != nil {
			return false, ignoreEOF(err)
		}
		return sha256.Sum256(chunk) == extent.Ref.Digest, nil
	}
	if err := tree.ReadAt(from, chunk, offset); err != nil || sha256.Sum256(chunk) != extent.Ref.Digest {
		return false, ignoreEOF(err)
	}
	return true, tree.WriteAt(fd, chunk, extent.Offset)
}

func ignoreGone(err error) error {
	if tree.IsGone(err) || tree.IsOther(err) {
		return nil
	}
	return err
}
