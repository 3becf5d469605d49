package checkout

import (
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/tree"
)

// attributes sets owners, modes, extended attributes and mtimes of a tree that has its content.
type attributes struct{ chunks manifest.Chunks }

func (a *attributes) enter(parent *frame, name string, _ *manifest.Entry) (int, error) {
	return tree.OpenFolder(parent.fd, name)
}

func (a *attributes) entered(*frame) error { return nil }

func (a *attributes) other(folder *frame, name string, entry *manifest.Entry) error {
	if entry.Type == manifest.Link {
		return nil
	}
	block, err := manifest.ReadXattrs(entry, a.chunks)
	if err != nil {
		return err
	}
	return tree.SetAttributes(folder.fd, name, entry, block)
}

func (a *attributes) leave(folder *frame) error {
	block, err := manifest.ReadXattrs(&folder.entry, a.chunks)
	if err != nil {
		return err
	}
	return tree.SetLive(folder.fd, &folder.entry, block)
}
