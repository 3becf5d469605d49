// Package pack writes and reads packs: blobs that hold chunks one after the other.
package pack

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/rpc"
)

// TargetBytes ends a pack. The last chunk may make it larger, by one chunk.
const TargetBytes = 16 * 1024 * 1024

// Writer writes packs into a folder, each named by its digest once it is whole. Hashing and writing are done beside the caller.
type Writer struct {
	folder string
	packs  *manifest.Packs
	buffer sync.Pool
	number uint32
	offset uint64
	work   chan []byte
	done   chan error
	failed error
	// Written are the packs that are whole. The last of them are in the folder, as many bytes as held: those before are stored. The peer
	// was asked to store all before asked.
	Written []manifest.Pack
	peer    *rpc.Peer
	stored  int
	asked   int
	held    uint64
	unasked uint64
}

// NewWriter gives a writer whose packs are numbered in packs. If they are many, the peer is asked to store the first ones.
func NewWriter(folder string, packs *manifest.Packs, peer *rpc.Peer) *Writer {
	w := &Writer{folder: folder, packs: packs, peer: peer}
	w.buffer.New = func() interface{} { return make([]byte, manifest.ChunkBytes) }
	return w
}

// Buffer gives a buffer of one chunk for Add or Release.
func (w *Writer) Buffer() []byte { return w.buffer.Get().([]byte)[:manifest.ChunkBytes] }

// Release takes a buffer back that is not added.
func (w *Writer) Release(buffer []byte) {
	if cap(buffer) >= manifest.ChunkBytes {
		w.buffer.Put(buffer[:cap(buffer)])
	}
}

// Add appends a chunk whose digest is known, and keeps its bytes.
func (w *Writer) Add(digest manifest.Digest, chunk []byte) (manifest.Ref, error) {
	if w.failed != nil {
		return manifest.Ref{}, w.failed
	}
	if w.work == nil {
		if err := w.begin(); err != nil {
			w.failed = err
			return manifest.Ref{}, err
		}
	}
	ref := manifest.Ref{Digest: digest, Pack: w.number, Offset: w.offset, Length: uint32(len(chunk))}
	w.offset += uint64(len(chunk))
	w.work <- chunk
	if w.offset >= TargetBytes {
		return ref, w.Flush()
	}
	return ref, nil
}

func (w *Writer) begin() error {
	file, err := os.CreateTemp(w.folder, ".pack-*")
	if err != nil {
		return err
	}
	w.number, w.offset = w.packs.Reserve(), 0
	w.work, w.done = make(chan []byte, 4), make(chan error, 1)
	go w.write(file, w.number, w.work, w.done)
	return nil
}

// write is the other side of Add.
func (w *Writer) write(file *os.File, number uint32, work <-chan []byte, done chan<- error) {
	sum := sha256.New()
	size := uint64(0)
	var err error
	// Small chunks are written together.
	gathered := make([]byte, 0, 256*1024)
	flush := func() {
		if err == nil && len(gathered) > 0 {
			err = writeBoth(sum, file, gathered)
		}
		gathered = gathered[:0]
	}
	for chunk := range work {
		size += uint64(len(chunk))
		if len(gathered)+len(chunk) > cap(gathered) {
			flush()
		}
		if len(chunk) > cap(gathered) {
			if err == nil {
				err = writeBoth(sum, file, chunk)
			}
		} else {
			gathered = append(gathered, chunk...)
		}
		w.Release(chunk)
	}
	flush()
	if err == nil {
		err = file.Chmod(0o600)
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	pack := manifest.Pack{Bytes: size}
	copy(pack.Digest[:], sum.Sum(nil))
	if err == nil {
		err = os.Rename(file.Name(), filepath.Join(w.folder, pack.Digest.String()))
	}
	if err != nil {
		os.Remove(file.Name())
		done <- fmt.Errorf("writing a pack: %w", err)
		return
	}
	w.packs.Set(number, pack)
	w.Written = append(w.Written, pack)
	done <- nil
}

func writeBoth(sum hash.Hash, file *os.File, data []byte) error {
	sum.Write(data)
	_, err := file.Write(data)
	return err
}

// Flush ends the pack that is being written. Afterwards all numbers that Add has given have their digests.
func (w *Writer) Flush() error {
	if w.work == nil {
		return w.failed
	}
	close(w.work)
	err := <-w.done
	w.work = nil
	if err == nil {
		err = w.offload()
	}
	if w.failed == nil {
		w.failed = err
	}
	return w.failed
}

// offload has packs stored as long as too much is in the folder.
func (w *Writer) offload() error {
	last := w.Written[len(w.Written)-1].Bytes
	w.held, w.unasked = w.held+last, w.unasked+last
	for ; w.unasked > AheadBytes/2; w.asked++ {
		if err := w.peer.Store(w.Written[w.asked]); err != nil {
			return err
		}
		w.unasked -= w.Written[w.asked].Bytes
	}
	for w.held > AheadBytes && w.stored < w.asked {
		if err := w.awaitStored(); err != nil {
			return err
		}
	}
	return nil
}

// awaitStored waits for the next pack that was asked to be stored, and removes it.
func (w *Writer) awaitStored() error {
	pack := w.Written[w.stored]
	if err := w.peer.Await(pack); err != nil {
		return err
	}
	w.stored++
	w.held -= pack.Bytes
	if err := os.Remove(filepath.Join(w.folder, pack.Digest.String())); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// AwaitStored waits until all is stored that the peer was asked to store.
func (w *Writer) AwaitStored() error {
	for w.stored < w.asked {
		if err := w.awaitStored(); err != nil {
			return err
		}
	}
	return nil
}
