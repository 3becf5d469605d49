package merge

import (
	"fmt"
	"os"
	"regexp"
	"time"

	"golang.org/x/sys/unix"

	"releap/host/internal/failpoint"
	"releap/host/internal/volume/displaced"
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/pack"
	"releap/host/internal/volume/rpc"
	"releap/host/internal/volume/state"
	"releap/host/internal/volume/tree"
)

// Result of a merge.
type Result struct {
	// Applied counts paths of the tree that were changed.
	Applied   int
	Conflicts []displaced.Conflict
}

var suffixes = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)

// Options of a merge: the tree, the folder of the state, the root blob, the folder with packs, the folder for files that are swapped
// out (in the file system of the tree), and how names of versions in conflict end.
type Options struct{ Root, State, Manifest, Packs, Displaced, Suffix string }

// Merge applies a manifest to the tree and makes it the base.
func Merge(o Options, peer *rpc.Peer) (*Result, error) {
	if !suffixes.MatchString(o.Suffix) {
		return nil, fmt.Errorf("the name %.100q for versions in conflict is not allowed: 1 to 100 letters, digits, dots, hyphens and underscores", o.Suffix)
	}
	kept, err := state.Open(o.State)
	if err != nil {
		return nil, err
	}
	defer kept.Close()
	if err := kept.Tidy(); err != nil {
		return nil, err
	}
	m := &merger{state: kept, suffix: o.Suffix, root: -1, displaced: -1, parent: -1, filled: -1, displacedPath: o.Displaced, rootPath: o.Root, groups: map[manifest.LinkID]anchor{}}
	defer m.close()
	if m.root, err = tree.OpenRoot(o.Root); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Displaced, 0o700); err != nil {
		return nil, err
	}
	if m.displaced, err = tree.OpenRoot(o.Displaced); err != nil {
		return nil, err
	}
	if m.plan, err = openPlan(kept, o.Manifest, o.Packs, peer); err != nil {
		return nil, err
	}
	if m.kept, err = pack.NewSpillFile(kept.Folder); err != nil {
		return nil, err
	}
	late, err := displaced.Sweep(kept, m.root)
	if err != nil {
		return nil, err
	}
	if err := m.run(late); err != nil {
		m.removeStaged()
		return nil, err
	}
	return &Result{m.applied, m.journal.all()}, nil
}

// merger is one merge.
type merger struct {
	*plan
	state         *state.State
	suffix        string
	root          int
	displaced     int
	displacedPath string
	rootPath      string
	journal       *journal
	local         local
	// Chunks of long extended attributes.
	kept   *pack.SpillFile
	buffer []byte
	// How files of theirs look in the tree, by number of the change.
	stamps []stamp
	// A file of the tree that has the content of each group of hard links.
	groups map[manifest.LinkID]anchor
	// Inodes of files that can be swapped in, by number of the change, and files there whose content is being written.
	staged     []uint64
	unfinished []uint32
	// The one that was written to last.
	filled       int
	filledNumber uint32
	swapped      []swapped
	deferred     []int
	isLate       bool // the deferred ones are being applied
	folders      []folderTime
	applied      int
	// The folder that was opened last.
	parent     int
	parentPath string
}

type stamp struct {
	ino   uint64
	ctime manifest.Time
}

type anchor struct {
	path string
	ino  uint64
}

// swapped is a file that was taken out of the tree: its inode when it was staged, and whose entry it has unless a sandbox has just
// written to it.
type swapped struct {
	ino      uint64
	number   uint32
	expected side
}

type side byte

const (
	neither side = iota
	base
	theirs
)

type folderTime struct {
	path  string
	mtime manifest.Time
}

func (m *merger) close() {
	m.forget()
	if m.plan != nil {
		m.plan.close()
	}
	if m.journal != nil {
		m.journal.close()
	}
	if m.kept != nil {
		m.kept.Close()
	}
	for _, fd := range []int{m.root, m.displaced} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func (m *merger) run(late []displaced.Conflict) error {
	interrupted, earlier, err := m.recover()
	if err != nil {
		return err
	}
	earlier = append(earlier, late...)
	digest := m.source.Blob.Digest.String()
	if m.base.Digest == digest {
		return m.repeated(digest, append(earlier, interrupted...))
	}
	if err := m.compare(); err != nil {
		return err
	}
	if m.local, err = m.findLocal(m.root); err != nil {
		return err
	}
	m.stamps = make([]stamp, len(m.changes))
	head := journalHead{Root: digest, Suffix: m.suffix, Stamp: fmt.Sprintf("%s-%x", digest[:8], time.Now().UnixNano()), Paths: len(m.changes), Earlier: linesOf(earlier)}
	path := func(number int) (string, error) { return m.pathAt(&m.changes[number]) }
	if m.journal, err = newJournal(m.state, head, path, interrupted); err != nil {
		return err
	}
	if err := displaced.Acknowledge(m.state); err != nil { // the journal has them
		return err
	}
	if err := m.stageAll(); err != nil {
		return err
	}
	// No file is swapped in whose content a power failure could take back: the tree would have a file of zeros, and the
	// next commit would publish it. What is staged from here on is fsynced by itself.
	if err := unix.Syncfs(m.displaced); err != nil {
		return fmt.Errorf("syncfs of the files to swap in: %w", err)
	}
	failpoint.Reach("voltree-staged")
	for i := range m.changes {
		if err := m.apply(i); err != nil {
			return err
		}
		failpoint.Reach("voltree-applied")
	}
	m.isLate = true
	for at := len(m.deferred) - 1; at >= 0; at-- {
		i := m.deferred[at]
		if err := m.apply(i); err != nil {
			return err
		}
	}
	failpoint.Reach("voltree-all-applied")
	if err := m.finalizeSwapped(); err != nil {
		return err
	}
	m.setFolderTimes()
	m.removeStaged()
	if err := unix.Syncfs(m.root); err != nil {
		return fmt.Errorf("syncfs of the volume: %w", err)
	}
	failpoint.Reach("voltree-finalized")
	next, err := m.index()
	if err != nil {
		return err
	}
	if err := m.state.Replace(next); err != nil {
		return err
	}
	failpoint.Reach("voltree-merged")
	return m.journal.finish()
}

// repeated answers a merge whose answer was lost: the conflicts are those of then.
func (m *merger) repeated(digest string, conflicts []displaced.Conflict) (err error) {
	head := journalHead{Root: digest, Suffix: m.suffix, Stamp: "none", Earlier: linesOf(conflicts)}
	if m.journal, err = newJournal(m.state, head, nil, nil); err != nil {
		return err
	}
	if err := displaced.Acknowledge(m.state); err != nil {
		return err
	}
	return m.journal.finish()
}
