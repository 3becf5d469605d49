// Package displaced keeps files that a merge has taken out of the tree for as long as a sandbox may still have them open: one that is
// written to after all comes back beside the file that has replaced it.
package displaced

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"releap/host/internal/failpoint"
	"releap/host/internal/volume/lines"
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/state"
	"releap/host/internal/volume/tree"
)

const listFile = "limbo.jsonl"

// grace is longer than a guest takes a name for a file without asking again.
const grace = 15 * time.Second

// Conflict is a version of a file that was kept beside another, or instead of being removed.
type Conflict struct {
	Path string `json:"path"`
	Kept string `json:"kept_as"`
	Kind string `json:"kind"`
}

// Kinds of conflicts.
const (
	Changed    = "changed"    // both have changed or added the file: theirs has the path, mine is KeptAs
	Type       = "type"       // one has a folder where the other has none: theirs has the path, mine is KeptAs
	Deleted    = "deleted"    // one has removed what the other has changed: the changed one is at the path
	Attributes = "attributes" // both have changed owner, mode or extended attributes: theirs are taken
	Late       = "late-write" // a sandbox wrote to a file that was already replaced or removed: its version is KeptAs
)

// Item is a displaced file. Paths are bytes, which JSON has in base64.
type Item struct {
	Folder []byte        `json:"folder"`
	Name   string        `json:"name"`
	Path   []byte        `json:"path"`
	Suffix string        `json:"suffix"`
	Ctime  manifest.Time `json:"ctime"`
	Since  int64         `json:"since"` // seconds since 1970
}

// List is open to be added to.
type List struct{ out *lines.Writer }

// OpenList opens the list of a state.
func OpenList(kept *state.State) (*List, error) {
	out, err := lines.Append(filepath.Join(kept.Folder, listFile))
	return &List{out}, err
}

// Add appends an item.
func (l *List) Add(item *Item) error { return l.out.Add(item) }

// Close makes the list durable.
func (l *List) Close() error {
	defer l.out.Close()
	return l.out.Sync()
}

// Each visits the list.
func Each(kept *state.State, visit func(item *Item) error) error {
	return lines.Read(filepath.Join(kept.Folder, listFile), func(line []byte) error {
		var item Item
		if json.Unmarshal(line, &item) != nil { // a crash has damaged it: it names nothing
			return nil
		}
		return visit(&item)
	})
}

// Sweep brings back displaced files that were written to, and removes those that no process can write to any more. The conflicts are
// those of earlier sweeps, too, until Acknowledge.
func Sweep(kept *state.State, root int) ([]Conflict, error) {
	s := sweep{root: root, folder: -1, late: filepath.Join(kept.Folder, lateFile), known: map[Conflict]bool{}}
	defer s.close()
	if err := s.unacknowledged(); err != nil {
		return nil, err
	}
	var stays []bool
	left := 0
	err := Each(kept, func(item *Item) error {
		stay, err := s.item(item)
		stays = append(stays, stay)
		if stay {
			left++
		}
		return err
	})
	if err != nil || (left == len(stays) && !s.isSetBack) {
		return s.conflicts, err
	}
	if s.hasRestored { // the list is the only one that names them where they were
		if err := unix.Syncfs(root); err != nil {
			return nil, err
		}
	}
	path := filepath.Join(kept.Folder, listFile)
	if left == 0 {
		return s.conflicts, os.Remove(path)
	}
	next, err := lines.Replace(path)
	if err != nil {
		return nil, err
	}
	defer next.Close()
	at := 0
	err = Each(kept, func(item *Item) error {
		at++
		if !stays[at-1] {
			return nil
		}
		if now := time.Now().Unix(); item.Since > now {
			item.Since = now
		}
		return next.Add(item)
	})
	if err == nil {
		err = next.Finish()
	}
	return s.conflicts, err
}

// lateFile has the conflicts of sweeps until the caller is known to have them: what comes after a sweep may fail, and the answer of a
// command may be lost.
const lateFile = "late.jsonl"

// lateLine has paths as bytes, which JSON has in base64.
type lateLine struct {
	Path []byte `json:"path"`
	Kept []byte `json:"kept"`
}

func (s *sweep) unacknowledged() error {
	return lines.Read(s.late, func(line []byte) error {
		var read lateLine
		if json.Unmarshal(line, &read) == nil {
			s.note(Conflict{string(read.Path), string(read.Kept), Late})
		}
		return nil
	})
}

func (s *sweep) note(conflict Conflict) {
	if !s.known[conflict] {
		s.known[conflict] = true
		s.conflicts = append(s.conflicts, conflict)
	}
}

// Acknowledge forgets the conflicts of Sweep: the caller has kept them, or a journal has.
func Acknowledge(kept *state.State) error {
	if err := os.Remove(filepath.Join(kept.Folder, lateFile)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

type sweep struct {
	late        string
	root        int
	folder      int
	path        string
	conflicts   []Conflict
	known       map[Conflict]bool
	hasRestored bool
	// The clock was set back since a file came here, and how long it has been here is not known: its grace begins again.
	isSetBack bool
}

func (s *sweep) close() {
	if s.folder >= 0 {
		unix.Close(s.folder)
		s.folder = -1
	}
}

func (s *sweep) item(item *Item) (stays bool, err error) {
	if s.folder < 0 || s.path != string(item.Folder) {
		s.close()
		s.folder, err = unix.Open(string(item.Folder), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) { // another disk
			s.folder = -1
			return false, nil
		}
		if err != nil {
			return true, err
		}
		s.path = string(item.Folder)
	}
	stat, err := tree.Lstat(s.folder, item.Name)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	if stat.Ctime == item.Ctime && stat.Type() == manifest.File {
		isFree, err := release(s.folder, item)
		s.isSetBack = s.isSetBack || item.Since > time.Now().Unix()
		return !isFree, err
	}
	if stat.Ctime == item.Ctime { // links and FIFOs are not written to
		return false, unix.Unlinkat(s.folder, item.Name, 0)
	}
	where, err := RestoreAside(s.root, s.folder, item.Name, string(item.Path), item.Suffix, func(where string) error {
		return s.announce(item.Path, where)
	})
	if err != nil {
		return true, err
	}
	s.hasRestored = true
	s.note(Conflict{string(item.Path), where, Late})
	return false, nil
}

// announce records a conflict, durably, before the tree shows it: afterwards nothing tells the file from any other.
func (s *sweep) announce(path []byte, where string) error {
	out, err := lines.Append(s.late)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := out.Add(lateLine{path, []byte(where)}); err != nil {
		return err
	}
	return out.Sync()
}

// release removes the file if it was displaced a while ago, no process has it open for writing, and it was not changed.
func release(folder int, item *Item) (bool, error) {
	if time.Since(time.Unix(item.Since, 0)) < grace {
		return false, nil
	}
	fd, err := tree.OpenFile(folder, item.Name)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	// A read lease is granted if no process has the file open for writing. (A file system without leases: by age alone.)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK); errors.Is(err, unix.EAGAIN) {
		return false, nil
	}
	stat, err := tree.Fstat(fd)
	if err != nil || stat.Ctime != item.Ctime {
		return false, err
	}
	return true, unix.Unlinkat(folder, item.Name, 0)
}

// RestoreAside moves a displaced file to a free name beside a path, and gives that name's path. Folders on the way to it that are gone
// are made again. Before is called with each path that is tried.
func RestoreAside(root, folder int, name, path, suffix string, before func(kept string) error) (string, error) {
	parent, reached, last, err := makeParents(root, path)
	if err != nil {
		return "", err
	}
	defer unix.Close(parent)
	free, err := MoveAside(folder, name, parent, last, suffix, func(free string) error { return before(tree.Join(reached, free)) })
	failpoint.Reach("voltree-restored-aside")
	return tree.Join(reached, free), err
}

// makeParents opens the folder of a path, or the last one before something that is no folder.
func makeParents(root int, path string) (fd int, reached, name string, err error) {
	fd, err = unix.FcntlInt(uintptr(root), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, "", "", err
	}
	for {
		var rest string
		var more bool
		name, rest, more = strings.Cut(path, "/")
		if !more {
			return fd, reached, name, nil
		}
		next, err := tree.OpenFolder(fd, name)
		if errors.Is(err, unix.ENOENT) {
			if err = unix.Mkdirat(fd, name, 0o755); err == nil || errors.Is(err, unix.EEXIST) {
				next, err = tree.OpenFolder(fd, name)
			}
		}
		if tree.IsGone(err) {
			return fd, reached, path[strings.LastIndexByte(path, '/')+1:], nil
		}
		unix.Close(fd)
		if err != nil {
			return -1, "", "", err
		}
		fd, path, reached = next, rest, tree.Join(reached, name)
	}
}

const attemptsMax = 10_000

// ErrTaken is for MoveAside's before: the name is about to be used.
var ErrTaken = errors.New("the name is taken")

// MoveAside renames something to NAME.conflict-SUFFIX in a folder, or to the first such name with a number that is free. Before is
// called with each name that is tried.
func MoveAside(from int, name string, to int, last, suffix string, before func(free string) error) (string, error) {
	for attempt := 1; attempt < attemptsMax; attempt++ {
		free := ConflictName(last, suffix, attempt)
		if _, err := tree.Lstat(to, free); err == nil {
			continue
		}
		err := before(free)
		if errors.Is(err, ErrTaken) {
			continue
		}
		if err != nil {
			return "", err
		}
		err = unix.Renameat2(from, name, to, free, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		return free, err
	}
	return "", errors.New("no name is free for a version in conflict")
}

// ConflictName gives a name of at most 255 bytes.
func ConflictName(name, suffix string, attempt int) string {
	end := ".conflict-" + suffix
	if attempt > 1 {
		end += "-" + strconv.Itoa(attempt)
	}
	if len(name)+len(end) > manifest.MaxName {
		name = name[:manifest.MaxName-len(end)]
	}
	return name + end
}
