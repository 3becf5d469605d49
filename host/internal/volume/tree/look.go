package tree

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Looker finds paths of a tree, most of which are in the folder of the one before.
type Looker struct {
	root   int
	folder int
	path   string
}

// NewLooker gives one for the tree below an open folder.
func NewLooker(root int) *Looker { return &Looker{root: root, folder: -1} }

// Close closes the folder that was opened last.
func (l *Looker) Close() {
	if l.folder >= 0 {
		unix.Close(l.folder)
		l.folder = -1
	}
}

// Parent opens the folder of a path, and gives the path's last name. The descriptor is valid until the next call. No links are
// followed, in any part of the path.
func (l *Looker) Parent(path string) (folder int, name string, err error) {
	parent := path[:strings.LastIndexByte(path, '/')+1]
	if l.folder < 0 || parent != l.path {
		l.Close()
		fd, _, err := OpenParent(l.root, path)
		if err != nil {
			return -1, "", err
		}
		l.folder, l.path = fd, parent
	}
	return l.folder, path[len(parent):], nil
}

// Lstat follows no links, in any part of the path.
func (l *Looker) Lstat(path string) (Stat, error) {
	if path == "" {
		return Fstat(l.root)
	}
	folder, name, err := l.Parent(path)
	if err != nil {
		return Stat{}, err
	}
	return Lstat(folder, name)
}
