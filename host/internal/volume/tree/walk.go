package tree

import (
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/manifest"
)

// Item is something of a tree.
type Item struct {
	Path   string
	Parent int // descriptor of its folder; for the root that of the root
	Name   string
	// Folder is its own descriptor if it is a folder, else -1.
	Folder int
	Stat   Stat
	// Refused says why it and what is below it cannot be recorded.
	Refused string
}

// Walk visits a tree in the order of manifest.Compare. What vanishes meanwhile is left out. Descriptors of an item are valid until
// visit returns.
func Walk(root int, visit func(*Item) error) error {
	stat, err := Fstat(root)
	if err != nil {
		return err
	}
	if err := visit(&Item{Parent: root, Name: ".", Folder: root, Stat: stat}); err != nil {
		return err
	}
	w := walker{device: stat.Dev, visit: visit, workers: runtime.GOMAXPROCS(0)}
	return w.folder(root, "", 1)
}

type walker struct {
	device  uint64
	visit   func(*Item) error
	workers int
}

// batch bounds how many results of lstat are in memory, for each level.
const batch = 1024

type statResult struct {
	stat Stat
	err  error
}

func (w *walker) folder(fd int, path string, depth int) error {
	names, err := Names(fd)
	if IsGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	size := len(names)
	if size > batch {
		size = batch
	}
	results := make([]statResult, size)
	for len(names) > 0 {
		if len(names) < size {
			size = len(names)
		}
		w.statAll(fd, names[:size], results)
		for i, name := range names[:size] {
			if err := w.item(fd, Item{Path: Join(path, name), Parent: fd, Name: name, Folder: -1, Stat: results[i].stat}, results[i].err, depth); err != nil {
				return err
			}
		}
		names = names[size:]
	}
	return nil
}

// statAll calls lstat for all names, in parallel if they are many.
func (w *walker) statAll(fd int, names []string, results []statResult) {
	const worthIt = 64
	if len(names) < worthIt || w.workers < 2 {
		lookAll(fd, names, results)
		return
	}
	var all sync.WaitGroup
	for i := 0; i < w.workers; i++ {
		from, to := len(names)*i/w.workers, len(names)*(i+1)/w.workers
		all.Add(1)
		go func() {
			defer all.Done()
			lookAll(fd, names[from:to], results[from:to])
		}()
	}
	all.Wait()
}

func lookAll(fd int, names []string, results []statResult) {
	for i, name := range names {
		results[i].stat, results[i].err = Lstat(fd, name)
	}
}

func (w *walker) item(parent int, item Item, err error, depth int) error {
	// A name may become something else between two calls; each time the next call says so.
	for attempt := 0; attempt < 3; attempt++ {
		if attempt > 0 {
			item.Stat, err = Lstat(parent, item.Name)
		}
		if IsGone(err) {
			return nil
		}
		if err != nil {
			return &PathError{item.Path, err}
		}
		switch {
		case item.Stat.Dev != w.device:
			item.Refused = "another file system is mounted there"
		case item.Stat.Type() == 0:
			item.Refused = "sockets and devices are not recorded"
		case depth > manifest.MaxDepth:
			item.Refused = "its path has too many folders"
		case len(item.Path) > manifest.MaxPath:
			item.Refused = "its path is too long"
		}
		if item.Refused != "" || item.Stat.Type() != manifest.Folder {
			return w.visit(&item)
		}
		fd, openErr := OpenFolder(parent, item.Name)
		if IsGone(openErr) {
			continue
		}
		if openErr != nil {
			return &PathError{item.Path, openErr}
		}
		err := w.opened(fd, item, depth)
		unix.Close(fd)
		return err
	}
	return nil
}

func (w *walker) opened(fd int, item Item, depth int) error {
	stat, err := Fstat(fd)
	if err != nil {
		return err
	}
	item.Stat, item.Folder = stat, fd
	if stat.Dev != w.device {
		item.Refused = "another file system is mounted there"
		return w.visit(&item)
	}
	if err := w.visit(&item); err != nil {
		return err
	}
	return w.folder(fd, item.Path, depth+1)
}
