package pack

import (
	"crypto/sha256"
	"os"

	"releap/host/internal/volume/manifest"
)

// Aside keeps chunks that are needed after their packs are dropped: those of long extended attributes.
type Aside struct {
	file   *os.File // without a name
	length int64
	places map[manifest.Digest]int64
}

// NewAside keeps them in a file system with that folder.
func NewAside(folder string) (*Aside, error) {
	file, err := os.CreateTemp(folder, "aside-*.new")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, err
	}
	return &Aside{file: file, places: map[manifest.Digest]int64{}}, nil
}

// Close forgets them.
func (a *Aside) Close() { a.file.Close() }

// Keep keeps a chunk.
func (a *Aside) Keep(digest manifest.Digest, chunk []byte) error {
	if _, ok := a.places[digest]; ok {
		return nil
	}
	if _, err := a.file.WriteAt(chunk, a.length); err != nil {
		return err
	}
	a.places[digest] = a.length
	a.length += int64(len(chunk))
	return nil
}

// Has says whether a chunk was kept.
func (a *Aside) Has(digest manifest.Digest) bool {
	_, ok := a.places[digest]
	return ok
}

// Read reads a chunk that was kept.
func (a *Aside) Read(ref *manifest.Ref, _ []byte) ([]byte, error) {
	at, ok := a.places[ref.Digest]
	if !ok {
		return nil, manifest.ErrDamaged
	}
	chunk := make([]byte, ref.Length)
	if _, err := a.file.ReadAt(chunk, at); err != nil {
		return nil, err
	}
	if sha256.Sum256(chunk) != ref.Digest {
		return nil, manifest.ErrDamaged
	}
	return chunk, nil
}
