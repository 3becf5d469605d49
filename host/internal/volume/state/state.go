// Package state is what a host knows of its copy of a volume: the manifest that the tree was last equal to (the base), and how each
// file looked to lstat then.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"releap/host/internal/failpoint"
	"releap/host/internal/volume/manifest"
)

const (
	baseFile    = "base.json"
	pendingFile = "pending.json"
	begunFile   = "checkout"
	lockFile    = "lock"
	indexPrefix = "index-"
)

// Base names a manifest and the index of a tree. A base without a root is that of an empty volume, before the first commit.
type Base struct {
	// Digest and Bytes of the root blob.
	Digest string        `json:"digest"`
	Bytes  uint64        `json:"bytes"`
	Root   manifest.Root `json:"root"`
	// Lists are the chunks of long lists of extents.
	Lists []Chunk `json:"lists,omitempty"`
	// Tree is where the tree was.
	Tree string `json:"tree"`
	// Index is the name of the file in the state's folder. Offsets are where in it each of the segments begins.
	Index   string   `json:"index"`
	Offsets []uint64 `json:"offsets"`
	// IndexPacks are the packs in the order of their numbers in the index.
	IndexPacks []PackUse `json:"index_packs"`
}

// PackUse is a pack with content.
type PackUse struct {
	manifest.PackRow
	// Live is the length of its chunks that the tree has. A chunk counts as often as it occurs.
	Live uint64 `json:"live"`
}

// Chunk says where a chunk is, in a pack of the root.
type Chunk = manifest.Segment

// State is a locked folder.
type State struct {
	Folder string
	lock   *os.File
}

// ErrBusy: another voltree works with the same folder.
var ErrBusy = errors.New("another voltree command works with this state")

// Open creates the folder if need be, and locks it until Close.
func Open(folder string) (*State, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(folder, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", folder, ErrBusy)
		}
		return nil, err
	}
	return &State{Folder: folder, lock: lock}, nil
}

// Close releases the lock.
func (s *State) Close() { s.lock.Close() }

// Base reads the base; an empty one if there is none yet.
func (s *State) Base() (*Base, error) { return s.read(baseFile) }

func (s *State) read(name string) (*Base, error) {
	data, err := os.ReadFile(filepath.Join(s.Folder, name))
	if errors.Is(err, fs.ErrNotExist) {
		return &Base{}, nil
	}
	if err != nil {
		return nil, err
	}
	var base Base
	if err := json.Unmarshal(data, &base); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(s.Folder, name), err)
	}
	return &base, nil
}

// Begin notes that the tree is about to be made equal to a manifest. It says whether an earlier checkout of the same manifest has begun
// with that, and has not become the base.
func (s *State) Begin(digest string) (isResumed bool, err error) {
	base, err := s.Base()
	if err != nil {
		return false, err
	}
	path := filepath.Join(s.Folder, begunFile)
	begun, err := os.ReadFile(path)
	if err == nil && string(begun) == digest && base.Digest == "" {
		return true, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return false, s.replace(begunFile, []byte(digest))
}

// Offer makes a base pending until Accept.
func (s *State) Offer(base *Base) error { return s.write(pendingFile, base) }

// Replace makes it the base at once.
func (s *State) Replace(base *Base) error {
	if err := s.write(baseFile, base); err != nil {
		return err
	}
	failpoint.Reach("voltree-replaced")
	return s.Tidy()
}

// Accept makes the pending base the base.
func (s *State) Accept(digest string) error {
	pending, err := s.read(pendingFile)
	if err != nil {
		return err
	}
	if pending.Digest != digest {
		base, err := s.Base()
		if err != nil {
			return err
		}
		if base.Digest == digest {
			return s.Tidy()
		}
		return fmt.Errorf("sha256:%s is not the pending commit (that is %q) nor the base (%q)", digest, pending.Digest, base.Digest)
	}
	if err := os.Rename(filepath.Join(s.Folder, pendingFile), filepath.Join(s.Folder, baseFile)); err != nil {
		return err
	}
	if err := syncPath(s.Folder); err != nil {
		return err
	}
	failpoint.Reach("voltree-accepted")
	return s.Tidy()
}

// write is durable when it returns, and the base's index, too.
func (s *State) write(name string, base *Base) error {
	if err := syncPath(filepath.Join(s.Folder, base.Index)); err != nil {
		return err
	}
	data, err := json.Marshal(base)
	if err != nil {
		return err
	}
	return s.replace(name, data)
}

// replace writes a file as a whole, durably.
func (s *State) replace(name string, data []byte) error {
	path := filepath.Join(s.Folder, name)
	file, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return syncPath(s.Folder)
}

// Drop removes the index of a base that is not offered.
func (s *State) Drop(base *Base) error { return os.Remove(filepath.Join(s.Folder, base.Index)) }

// Tidy removes the pending commit, and indexes that nothing names.
func (s *State) Tidy() error {
	base, err := s.Base()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(s.Folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		stale := strings.HasPrefix(name, indexPrefix) && name != base.Index
		if stale || name == pendingFile || (name == begunFile && base.Digest != "") || strings.HasSuffix(name, ".new") {
			if err := os.Remove(filepath.Join(s.Folder, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func syncPath(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Sync()
}
