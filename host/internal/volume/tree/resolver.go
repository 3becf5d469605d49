package tree

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Resolver finds paths of a tree, most of which are in the folder of the one before.
type Resolver struct {
	root   int
	folder int
	path   string
}

// NewResolver gives one for the tree below an open folder.
func NewResolver(root int) *Resolver { return &Resolver{root: root, folder: -1} }

// Close closes the folder that was opened last.
func (r *Resolver) Close() {
	if r.folder >= 0 {
		unix.Close(r.folder)
		r.folder = -1
	}
}

// Parent opens the folder of a path, and gives the path's last name. The descriptor is valid until the next call. No links are
// followed, in any part of the path.
func (r *Resolver) Parent(path string) (folder int, name string, err error) {
	parent := path[:strings.LastIndexByte(path, '/')+1]
	if r.folder < 0 || parent != r.path {
		r.Close()
		fd, _, err := OpenParent(r.root, path)
		if err != nil {
			return -1, "", err
		}
		r.folder, r.path = fd, parent
	}
	return r.folder, path[len(parent):], nil
}

// Lstat follows no links, in any part of the path.
func (r *Resolver) Lstat(path string) (Stat, error) {
	if path == "" {
		return Fstat(r.root)
	}
	folder, name, err := r.Parent(path)
	if err != nil {
		return Stat{}, err
	}
	return Lstat(folder, name)
}
