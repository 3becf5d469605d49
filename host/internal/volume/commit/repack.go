package commit

import (
	"crypto/sha256"
	"io"
	"sort"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/state"
	"releap/host/internal/volume/tree"
)

const (
	// More packs than this that are small or mostly dead are replaced.
	wornMax = 64
	// A pack of fewer bytes is small.
	smallPack = 4 * 1024 * 1024
	// What one commit stores again at most: the rest waits for the next.
	repackBytes = 256 * 1024 * 1024
)

// worn chooses the packs of the base that this commit replaces, by their numbers. Their content is in the tree.
func worn(base *state.Base, packs *manifest.Packs) (map[uint32]bool, error) {
	uses := append([]state.PackUse(nil), base.IndexPacks...)
	// Packs with segments and lists hold nothing else.
	described := make(map[uint32]uint64)
	for _, chunks := range [][]state.Chunk{base.Root.Segments, base.Lists} {
		for _, chunk := range chunks {
			described[chunk.Pack] += uint64(chunk.Length)
		}
	}
	for number, live := range described {
		if int(number) < len(base.Root.Packs) {
			uses = append(uses, state.PackUse{PackRow: base.Root.Packs[number], Live: live})
		}
	}
	candidates := uses[:0]
	for _, use := range uses {
		if use.Bytes < smallPack || use.Live < use.Bytes/2 {
			candidates = append(candidates, use)
		}
	}
	if len(candidates) <= wornMax {
		return nil, nil
	}
	sort.Slice(candidates, func(i, j int) bool {
		if candidates[i].Live != candidates[j].Live {
			return candidates[i].Live < candidates[j].Live
		}
		return candidates[i].Digest < candidates[j].Digest
	})
	chosen := map[uint32]bool{}
	total := uint64(0)
	for _, use := range candidates {
		if total += use.Live; total > repackBytes {
			break
		}
		digest, err := manifest.ParseDigest(use.Digest)
		if err != nil {
			return nil, err
		}
		chosen[packs.Number(manifest.Pack{Digest: digest, Bytes: use.Bytes})] = true
	}
	return chosen, nil
}

// repack stores chunks of an unchanged file again that are in worn packs, and gives the record with their new places: the same
// record if there are none. A chunk that is no longer in the file stays where it is.
func (s *scan) repack(item *tree.Item, record *state.Record) (*state.Record, error) {
	isWorn := false
	for i := range record.Extents {
		isWorn = isWorn || s.worn[record.Extents[i].Ref.Pack]
	}
	if !isWorn {
		return record, nil
	}
	fd, err := tree.OpenFile(item.Parent, item.Name)
	if err != nil { // it changes: the next commit looks again
		return record, nil
	}
	defer unix.Close(fd)
	if stat, err := tree.Fstat(fd); err != nil || stat.Type() != manifest.File {
		return record, err
	}
	moved := *record
	moved.Extents = append([]manifest.Extent(nil), record.Extents...)
	for i := range moved.Extents {
		if s.worn[moved.Extents[i].Ref.Pack] {
			if err := s.restore(fd, &moved.Extents[i]); err != nil {
				return nil, err
			}
		}
	}
	return &moved, nil
}

func (s *scan) restore(fd int, extent *manifest.Extent) error {
	buffer := s.content.packs.Buffer()
	chunk := buffer[:extent.Ref.Length]
	if err := tree.ReadAt(fd, chunk, extent.Offset); err != nil && err != io.EOF {
		s.content.packs.Release(buffer)
		return err
	}
	if sha256.Sum256(chunk) != extent.Ref.Digest {
		s.content.packs.Release(buffer)
		return nil
	}
	ref, kept, err := s.content.store(chunk)
	if !kept {
		s.content.packs.Release(buffer)
	}
	if err == nil {
		extent.Ref = ref
	}
	return err
}
