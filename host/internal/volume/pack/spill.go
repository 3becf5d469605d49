package pack

import (
	"crypto/sha256"
	"os"

	"releap/host/internal/volume/manifest"
)

// SpillFile keeps chunks that are needed after their packs are dropped: those of long extended attributes.
type SpillFile struct {
	file   *os.File // without a name
	length int64
	places map[manifest.Digest]int64
}

// NewSpillFile keeps them in a file system with that folder.
func NewSpillFile(folder string) (*SpillFile, error) {
	file, err := os.CreateTemp(folder, "aside-*.new")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, err
	}
	return &SpillFile{file: file, places: map[manifest.Digest]int64{}}, nil
}

// Close forgets them.
func (f *SpillFile) Close() { f.file.Close() }

// Keep keeps a chunk.
func (f *SpillFile) Keep(digest manifest.Digest, chunk []byte) error {
	if _, ok := f.places[digest]; ok {
		return nil
	}
	if _, err := f.file.WriteAt(chunk, f.length); err != nil {
		return err
	}
	f.places[digest] = f.length
	f.length += int64(len(chunk))
	return nil
}

// Has says whether a chunk was kept.
func (f *SpillFile) Has(digest manifest.Digest) bool {
	_, ok := f.places[digest]
	return ok
}

// Read reads a chunk that was kept.
func (f *SpillFile) Read(ref *manifest.Ref, _ []byte) ([]byte, error) {
	at, ok := f.places[ref.Digest]
	if !ok {
		return nil, manifest.ErrDamaged
	}
	chunk := make([]byte, ref.Length)
	if _, err := f.file.ReadAt(chunk, at); err != nil {
		return nil, err
	}
	if sha256.Sum256(chunk) != ref.Digest {
		return nil, manifest.ErrDamaged
	}
	return chunk, nil
}
