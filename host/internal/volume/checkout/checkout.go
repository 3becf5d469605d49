// Package checkout makes a tree that is not in use equal to a manifest. It makes all files first, as holes, and then writes content
// pack by pack: so each pack is fetched once, and removed when what it holds is in the tree.
package checkout

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"releap/host/internal/failpoint"
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/pack"
	"releap/host/internal/volume/rpc"
	"releap/host/internal/volume/state"
	"releap/host/internal/volume/tree"
)

// Options of a checkout: the tree, the folder of the state, the root blob, and the folder with packs.
type Options struct{ Root, State, Manifest, Packs string }

// Checkout makes the tree equal to the manifest, and makes that the base. Packs that are missing are fetched.
func Checkout(o Options, peer *rpc.Peer) (*state.Base, error) {
	kept, err := state.Open(o.State)
	if err != nil {
		return nil, err
	}
	defer kept.Close()
	if err := kept.Tidy(); err != nil {
		return nil, err
	}
	packs := manifest.NewPacks()
	reader := pack.NewReader(o.Packs, packs, peer)
	defer reader.Close()
	source, err := manifest.OpenSource(o.Manifest, packs, reader)
	if err != nil {
		return nil, err
	}
	fd, err := tree.OpenRoot(o.Root)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	isResumed, err := kept.Begin(source.Blob.Digest.String())
	if err != nil {
		return nil, err
	}
	if err := write(kept, fd, source, reader, isResumed); err != nil {
		return nil, err
	}
	if err := unix.Syncfs(fd); err != nil {
		return nil, fmt.Errorf("syncfs of the volume: %w", err)
	}
	failpoint.Reach("voltree-written")
	// A write after this gives a file another ctime.
	time.Sleep(ctimeSteps)
	base := &state.Base{Tree: o.Root, Digest: source.Blob.Digest.String(), Bytes: source.Blob.Bytes, Root: *source.Root}
	if err := index(kept, fd, source, packs, base); err != nil {
		return nil, err
	}
	return base, kept.Replace(base)
}

// ctimeSteps is longer than the steps in which ctimes advance.
const ctimeSteps = 20 * time.Millisecond

func write(kept *state.State, root int, source *manifest.Source, reader *pack.Reader, isResumed bool) error {
	// Those of segments are read several times.
	keep := map[uint32]bool{}
	for number := range source.Root.Segments {
		if pack := source.SegmentRef(number).Pack; !keep[pack] {
			keep[pack] = true
			if err := reader.Ask(pack); err != nil {
				return err
			}
		}
	}
	s := &skeleton{source: source, root: root, isResumed: isResumed, firsts: map[manifest.LinkID]string{}, lists: keep}
	if err := s.make(); err != nil {
		return err
	}
	s.firsts = nil
	c, err := newContent(root, source, reader, kept.Folder)
	if err != nil {
		return err
	}
	defer c.close()
	var has func([]pack.Row) (bool, error)
	if isResumed {
		has = c.has
	}
	if err := reader.Scatter(s.rows, keep, has, c.place); err != nil {
		return err
	}
	failpoint.Reach("voltree-filled")
	return descend(root, source, &attributes{chunks: c.aside}, func(int) {})
}
