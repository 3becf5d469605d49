// Package commit records a tree in a manifest.
package commit

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"sort"

	"golang.org/x/sys/unix"

	"releap/host/internal/failpoint"
	"releap/host/internal/volume/displaced"
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/pack"
	"releap/host/internal/volume/rpc"
	"releap/host/internal/volume/state"
	"releap/host/internal/volume/tree"
)

// Result of a commit.
type Result struct {
	// Root is nil if the tree equals the base.
	Root    *manifest.Pack
	New     []manifest.Pack
	Dropped []manifest.Digest
	Packs   int

	UsedBytes    uint64
	Files        uint64
	Changed      uint64
	Skipped      []Skipped
	SkippedCount uint64
	// Conflicts are files that a sandbox wrote to after a merge had replaced them: all since the last commit that was accepted.
	Conflicts []displaced.Conflict
}

// Commit compares the tree below root with the base. If it differs, it writes new packs and the root into the folder out, and makes
// the commit pending. If they are many, it asks the peer to store the first ones, and removes them then. The packs are not made durable: a
// commit that is repeated after a crash writes them again.
func Commit(root, folder, out string, peer *rpc.Peer) (*Result, error) {
	kept, err := state.Open(folder)
	if err != nil {
		return nil, err
	}
	defer kept.Close()
	if err := kept.Tidy(); err != nil {
		return nil, err
	}
	base, err := kept.Base()
	if err != nil {
		return nil, err
	}
	if err := clean(out); err != nil {
		return nil, err
	}
	c := &committer{state: kept, base: base, packs: manifest.NewPacks(), out: out}
	c.writer = pack.NewWriter(out, c.packs, peer)
	result, err := c.run(root)
	if err != nil {
		_ = c.writer.Flush()
		c.removeWritten()
		_ = kept.Tidy()
	}
	return result, err
}

// clean creates the folder, and removes packs that were never whole.
func clean(out string) error {
	if err := os.MkdirAll(out, 0o700); err != nil {
		return err
	}
	partial, err := filepath.Glob(filepath.Join(out, ".pack-*"))
	for _, path := range partial {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return err
}

type committer struct {
	state  *state.State
	base   *state.Base
	packs  *manifest.Packs
	writer *pack.Writer
	out    string
}

func (c *committer) run(root string) (*Result, error) {
	fd, err := tree.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	late, err := displaced.Sweep(c.state, fd)
	if err != nil {
		return nil, err
	}
	next, s, err := c.scanStill(fd, root)
	if err != nil {
		return nil, err
	}
	failpoint.Reach("voltree-scanned")
	if err := c.describe(next, s); err != nil {
		return nil, err
	}
	next.Root.UsedBytes, next.Root.Files, next.Root.Folders = s.bytes, s.files, s.folders
	failpoint.Reach("voltree-packed")
	result := &Result{
		Packs: len(next.Root.Packs), UsedBytes: s.bytes, Files: s.files, Changed: s.changed, Skipped: s.skipped, SkippedCount: s.skippedCount,
		Conflicts: late,
	}
	if err := c.writer.AwaitStored(); err != nil {
		return nil, err
	}
	if c.isSame(next) {
		// The index may be new all the same: what was unsure was read.
		c.removeWritten()
		next.Digest, next.Bytes, next.Root, next.Lists = c.base.Digest, c.base.Bytes, c.base.Root, c.base.Lists
		result.Changed = 0
		return result, c.state.Replace(next)
	}
	data, err := next.Root.Encode()
	if err != nil {
		return nil, err
	}
	digest := manifest.Digest(sha256.Sum256(data))
	next.Digest, next.Bytes = digest.String(), uint64(len(data))
	if err := os.WriteFile(filepath.Join(c.out, next.Digest), data, 0o600); err != nil {
		return nil, err
	}
	result.Root = &manifest.Pack{Digest: digest, Bytes: next.Bytes}
	if err := c.compare(next, result); err != nil {
		return nil, err
	}
	if err := c.state.Offer(next); err != nil {
		return nil, err
	}
	failpoint.Reach("voltree-offered")
	return result, nil
}

// scans is how often a tree is scanned whose folders change meanwhile.
const scans = 4

// scanStill scans the tree again if something was not found, and a folder has changed since it was listed: what is moved to a folder
// that was listed already would look as if it were removed, and other hosts would remove it.
func (c *committer) scanStill(root int, path string) (*state.Base, *scan, error) {
	index, err := c.state.OpenIndex(c.base, c.packs)
	if err != nil {
		return nil, nil, err
	}
	defer index.Close()
	// What one scan has stored, the next one finds.
	known := &known{}
	if known.worn, err = worn(c.base, c.packs); err != nil {
		return nil, nil, err
	}
	for attempt := 1; ; attempt++ {
		next := &state.Base{Tree: path}
		index.Rewind()
		s, err := c.scan(root, index, known, next)
		if err != nil || s.removed == 0 || attempt == scans {
			return next, s, err
		}
		still, err := c.isStill(root, next)
		if err != nil || still {
			return next, s, err
		}
		if err := c.state.Drop(next); err != nil {
			return nil, nil, err
		}
	}
}

// isStill says that the folders of an index are as they were when they were listed.
func (c *committer) isStill(root int, next *state.Base) (bool, error) {
	index, err := c.state.OpenIndex(next, c.packs)
	if err != nil {
		return false, err
	}
	defer index.Close()
	paths := tree.NewResolver(root)
	defer paths.Close()
	still := true
	err = index.Each(func(_ state.Position, record *state.Record) error {
		if record.Type != manifest.Folder || !still {
			return nil
		}
		stat, err := paths.Lstat(record.Path)
		if tree.IsGone(err) {
			still, err = false, nil
		}
		still = still && stat.Ino == record.Ino && stat.Ctime == record.Ctime
		return err
	})
	return still, err
}

// scan writes the index of the tree as it is now, and all new content.
func (c *committer) scan(root int, index *state.Index, known *known, next *state.Base) (*scan, error) {
	s := &scan{base: index, links: map[uint64]manifest.LinkID{}, known: known, worn: known.worn}
	var err error
	if s.since, err = settledBefore(); err != nil {
		return nil, err
	}
	// Afterwards, a write to a page that a process has mapped makes the ctime newer than s.since.
	if err := unix.Syncfs(root); err != nil {
		return nil, fmt.Errorf("syncfs of the volume: %w", err)
	}
	s.content = content{root: root, packs: c.writer, known: s.knownFor}
	if s.out, err = c.state.NewIndex(); err != nil {
		return nil, err
	}
	err = s.next()
	if err == nil {
		err = tree.Walk(root, s.visit)
	}
	if err == nil {
		err = s.end()
	}
	if err == nil {
		err = c.writer.Flush()
	}
	// What was written during the walk was hashed from memory. It must be on the disk before the commit can be accepted:
	// after a power failure an older content would look like a newer change.
	if err == nil {
		if err = unix.Syncfs(root); err != nil {
			err = fmt.Errorf("syncfs of the volume: %w", err)
		}
	}
	if err != nil {
		s.out.Abandon()
		return nil, err
	}
	return s, s.out.Finish(c.packs, next)
}

// settledBefore gives a time: a file whose ctime is older was not written to since, as the clock of ctimes advances in steps of up
// to 10 ms.
func settledBefore() (manifest.Time, error) {
	const slack = 20_000_000
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil {
		return manifest.Time{}, err
	}
	nanoseconds := now.Nano() - slack
	return manifest.Time{Sec: nanoseconds / 1_000_000_000, Nsec: uint32(nanoseconds % 1_000_000_000)}, nil
}

// isSame says that the segments are those of the base.
func (c *committer) isSame(next *state.Base) bool {
	if c.base.Digest == "" || len(c.base.Root.Segments) != len(next.Root.Segments) {
		return false
	}
	for i := range next.Root.Segments {
		if next.Root.Segments[i].Digest != c.base.Root.Segments[i].Digest {
			return false
		}
	}
	return true
}

// compare says which packs are new, and which no longer needed.
func (c *committer) compare(next *state.Base, result *Result) error {
	before := map[string]bool{}
	for _, row := range c.base.Root.Packs {
		before[row.Digest] = true
	}
	for _, row := range next.Root.Packs {
		if before[row.Digest] {
			delete(before, row.Digest)
			continue
		}
		digest, err := manifest.ParseDigest(row.Digest)
		if err != nil {
			return err
		}
		result.New = append(result.New, manifest.Pack{Digest: digest, Bytes: row.Bytes})
	}
	for text := range before {
		digest, err := manifest.ParseDigest(text)
		if err != nil {
			return err
		}
		result.Dropped = append(result.Dropped, digest)
	}
	sort.Slice(result.Dropped, func(i, j int) bool { return result.Dropped[i].String() < result.Dropped[j].String() })
	return nil
}

func (c *committer) removeWritten() {
	for _, pack := range c.writer.Written {
		os.Remove(filepath.Join(c.out, pack.Digest.String()))
	}
}
