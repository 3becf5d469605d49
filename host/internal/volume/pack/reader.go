package pack

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/rpc"
)

const openMax = 64

// Reader reads chunks of packs in a folder, and verifies them. Packs that are not there are fetched when they are read.
type Reader struct {
	folder string
	packs  *manifest.Packs
	peer   *rpc.Peer
	open   map[manifest.Digest]*os.File
}

// NewReader gives a reader of the packs in a folder.
func NewReader(folder string, packs *manifest.Packs, peer *rpc.Peer) *Reader {
	return &Reader{folder: folder, packs: packs, peer: peer, open: map[manifest.Digest]*os.File{}}
}

// Close closes the files.
func (r *Reader) Close() {
	for digest, file := range r.open {
		file.Close()
		delete(r.open, digest)
	}
}

// Has says whether the pack is in the folder, with the right length if that is known.
func (r *Reader) Has(pack manifest.Pack) (bool, error) {
	info, err := os.Lstat(r.path(pack.Digest))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return info.Mode().IsRegular() && (pack.Bytes == 0 || uint64(info.Size()) == pack.Bytes), nil
}

// Ask asks for a pack that is not there, and does not wait for it.
func (r *Reader) Ask(number uint32) error {
	pack := r.packs.Get(number)
	has, err := r.Has(pack)
	if err != nil || has {
		return err
	}
	if pack.Bytes == 0 { // the root does not name it
		return manifest.ErrDamaged
	}
	return r.peer.Fetch(pack)
}

// Drop removes a pack that is not needed any more.
func (r *Reader) Drop(number uint32) error {
	digest := r.packs.Get(number).Digest
	if file, ok := r.open[digest]; ok {
		file.Close()
		delete(r.open, digest)
	}
	if err := os.Remove(r.path(digest)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (r *Reader) path(digest manifest.Digest) string { return filepath.Join(r.folder, digest.String()) }

// Read reads a chunk into buffer, which it makes longer if need be, and gives the chunk.
func (r *Reader) Read(ref *manifest.Ref, buffer []byte) ([]byte, error) {
	digest := r.packs.Get(ref.Pack).Digest
	file, err := r.file(ref.Pack)
	if err != nil {
		return nil, err
	}
	if uint32(cap(buffer)) < ref.Length {
		buffer = make([]byte, ref.Length)
	}
	buffer = buffer[:ref.Length]
	if _, err := file.ReadAt(buffer, int64(ref.Offset)); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("it is shorter than the manifest says")
		}
		return nil, fmt.Errorf("reading pack %s: %w", digest, err)
	}
	if sha256.Sum256(buffer) != ref.Digest {
		return nil, fmt.Errorf("pack %s is damaged: the chunk at %d is not %s", digest, ref.Offset, ref.Digest)
	}
	return buffer, nil
}

func (r *Reader) file(number uint32) (*os.File, error) {
	pack := r.packs.Get(number)
	if file, ok := r.open[pack.Digest]; ok {
		return file, nil
	}
	if len(r.open) >= openMax {
		r.Close()
	}
	if err := r.Ask(number); err != nil {
		return nil, err
	}
	if err := r.peer.Await(pack); err != nil {
		return nil, err
	}
	file, err := os.Open(r.path(pack.Digest))
	if err != nil {
		return nil, fmt.Errorf("a pack is missing: %w", err)
	}
	r.open[pack.Digest] = file
	return file, nil
}
