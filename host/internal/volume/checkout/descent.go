package checkout

import (
	"strings"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/tree"
)

// descent goes through a tree in the order of a manifest, with its folders open.
type descent struct {
	root  int
	steps steps
	// The folders that it is in, from the root.
	open []frame
}

// steps are what is done on the way.
type steps interface {
	// enter gives the descriptor of a folder, which leave is called for when all in it is done.
	enter(parent *frame, name string, entry *manifest.Entry) (int, error)
	entered(folder *frame) error
	other(parent *frame, name string, entry *manifest.Entry) error
	leave(folder *frame) error
}

type frame struct {
	fd    int
	entry manifest.Entry
	// What an interrupted checkout has left in it.
	left map[string]bool
}

// descend visits all entries of a manifest.
func descend(root int, source *manifest.Source, steps steps, segment func(number int)) error {
	d := descent{root: root, steps: steps}
	defer d.close()
	for number := range source.Root.Segments {
		entries, err := source.Segment(number)
		if err != nil {
			return err
		}
		segment(number)
		for i := range entries {
			if err := d.entry(&entries[i]); err != nil {
				return &tree.PathError{Path: entries[i].Path, Err: err}
			}
		}
	}
	return d.leave(0)
}

func (d *descent) close() {
	for _, frame := range d.open {
		if frame.fd != d.root {
			unix.Close(frame.fd)
		}
	}
}

func (d *descent) entry(entry *manifest.Entry) error {
	if entry.Path == "" {
		if entry.Type != manifest.Folder {
			return manifest.ErrDamaged
		}
		return d.push(frame{fd: d.root, entry: *entry})
	}
	parent, name := "", entry.Path
	if slash := strings.LastIndexByte(entry.Path, '/'); slash > 0 {
		parent, name = entry.Path[:slash], entry.Path[slash+1:]
	}
	depth := len(d.open)
	for depth > 0 && d.open[depth-1].entry.Path != parent {
		depth--
	}
	if depth == 0 { // its folder is not in the manifest
		return manifest.ErrDamaged
	}
	if err := d.leave(depth); err != nil {
		return err
	}
	folder := &d.open[depth-1]
	if entry.Type != manifest.Folder {
		return d.steps.other(folder, name, entry)
	}
	fd, err := d.steps.enter(folder, name, entry)
	if err != nil {
		return err
	}
	return d.push(frame{fd: fd, entry: *entry})
}

func (d *descent) push(folder frame) error {
	d.open = append(d.open, folder)
	return d.steps.entered(&d.open[len(d.open)-1])
}

// leave leaves all folders from a depth on.
func (d *descent) leave(depth int) error {
	for len(d.open) > depth {
		last := &d.open[len(d.open)-1]
		err := d.steps.leave(last)
		if last.fd != d.root {
			unix.Close(last.fd)
		}
		d.open = d.open[:len(d.open)-1]
		if err != nil {
			return err
		}
	}
	return nil
}
