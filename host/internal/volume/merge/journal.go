package merge

import (
	"encoding/json"
	"path/filepath"

	"releap/host/internal/volume/displaced"
	"releap/host/internal/volume/lines"
	"releap/host/internal/volume/state"
)

const journalFile = "merge.jsonl"

// journal says which paths a merge changes, by number, and has the conflicts that it has found: a merge that is repeated after a
// crash knows what the files are that it has swapped out, and reports the conflicts of before.
type journal struct {
	path      string
	out       *lines.Writer
	head      journalHead
	earlier   []displaced.Conflict
	conflicts []displaced.Conflict
	known     map[displaced.Conflict]bool
	// Paths from which something of mine has gone aside.
	aside map[string]bool
	// isDone: the merge's manifest has become the base.
	isDone bool
}

// all gives those of before, too.
func (j *journal) all() []displaced.Conflict {
	var all []displaced.Conflict
	known := map[displaced.Conflict]bool{}
	for _, conflict := range append(append(all, j.earlier...), j.conflicts...) {
		if !known[conflict] {
			known[conflict] = true
			all = append(all, conflict)
		}
	}
	return all
}

func (j *journal) note(conflict displaced.Conflict) {
	j.conflicts = append(j.conflicts, conflict)
	j.known[conflict] = true
	if conflict.Kept != conflict.Path {
		j.aside[conflict.Path] = true
	}
}

// Kinds of lines that are no conflicts: the end, and one that takes back the conflict before it.
const (
	done    = "done"
	dropped = "dropped"
)

// journalHead is the first line. The paths are in the lines after it.
type journalHead struct {
	Root   string `json:"root"`
	Suffix string `json:"suffix"`
	// Stamp begins the names of this merge's files in the folder of displaced files.
	Stamp string `json:"stamp"`
	Paths int    `json:"paths"`
	// Earlier conflicts, which no accepted commit has acknowledged.
	Earlier []conflictLine `json:"earlier,omitempty"`
}

// conflictLine has paths as bytes, which JSON has in base64.
type conflictLine struct {
	Path []byte `json:"path"`
	Kept []byte `json:"kept"`
	Kind string `json:"kind"`
}

func lineOf(conflict displaced.Conflict) conflictLine {
	return conflictLine{[]byte(conflict.Path), []byte(conflict.Kept), conflict.Kind}
}

func (l *conflictLine) conflict() displaced.Conflict {
	return displaced.Conflict{Path: string(l.Path), Kept: string(l.Kept), Kind: l.Kind}
}

func linesOf(conflicts []displaced.Conflict) []conflictLine {
	list := make([]conflictLine, 0, len(conflicts))
	for _, conflict := range conflicts {
		list = append(list, lineOf(conflict))
	}
	return list
}

func emptyJournal(kept *state.State) *journal {
	return &journal{path: filepath.Join(kept.Folder, journalFile), known: map[displaced.Conflict]bool{}, aside: map[string]bool{}}
}

// readJournal gives the last merge's journal: nil if there is none. It cannot be written to.
func readJournal(kept *state.State) (*journal, error) {
	j := emptyJournal(kept)
	at := -1
	err := lines.Read(j.path, func(line []byte) error {
		at++
		if at == 0 {
			err := json.Unmarshal(line, &j.head)
			j.setEarlier()
			return err
		}
		if at <= j.head.Paths {
			return nil
		}
		var read conflictLine
		switch err := json.Unmarshal(line, &read); {
		case err != nil: // it was not durable when the power failed
		case read.Kind == done:
			j.isDone = true
		case read.Kind == dropped && len(j.conflicts) > 0:
			j.forgetLast()
		default:
			j.note(read.conflict())
		}
		return nil
	})
	if err != nil || at < 0 {
		return nil, err
	}
	return j, nil
}

func (j *journal) setEarlier() {
	for i := range j.head.Earlier {
		j.earlier = append(j.earlier, j.head.Earlier[i].conflict())
	}
}

// eachPath visits the paths in order.
func (j *journal) eachPath(visit func(number int, path string) error) error {
	at := -2
	return lines.Read(j.path, func(line []byte) error {
		at++
		if at < 0 {
			return nil
		}
		if at == j.head.Paths {
			return lines.Stop
		}
		var path []byte
		if err := json.Unmarshal(line, &path); err != nil {
			return err
		}
		return visit(at, string(path))
	})
}

// newJournal replaces the journal, durably.
func newJournal(kept *state.State, head journalHead, path func(number int) (string, error), conflicts []displaced.Conflict) (*journal, error) {
	j := emptyJournal(kept)
	j.head = head
	j.setEarlier()
	var err error
	if j.out, err = lines.Replace(j.path); err != nil {
		return nil, err
	}
	err = j.out.Add(&j.head)
	for i := 0; i < head.Paths && err == nil; i++ {
		var text string
		if text, err = path(i); err == nil {
			err = j.out.Add([]byte(text))
		}
	}
	for i := 0; i < len(conflicts) && err == nil; i++ {
		err = j.add(conflicts[i])
	}
	if err == nil {
		err = j.out.Finish()
	}
	if err != nil {
		j.out.Close()
		return nil, err
	}
	return j, nil
}

// reopen lets a journal that was read be added to.
func (j *journal) reopen() (err error) {
	j.out, err = lines.Append(j.path)
	return err
}

// add records a conflict before the tree shows it.
func (j *journal) add(conflict displaced.Conflict) error {
	err := j.line(lineOf(conflict))
	if err == nil {
		j.note(conflict)
	}
	return err
}

func (j *journal) line(line conflictLine) error {
	if err := j.out.Add(line); err != nil {
		return err
	}
	return j.out.Flush()
}

// finish says that the merge was completed.
func (j *journal) finish() error { return j.line(conflictLine{Kind: done}) }

// drop forgets the conflict that was added last: its name was not free.
func (j *journal) drop() error {
	j.forgetLast()
	return j.line(conflictLine{Kind: dropped})
}

func (j *journal) forgetLast() {
	last := len(j.conflicts) - 1
	delete(j.known, j.conflicts[last])
	j.conflicts = j.conflicts[:last]
}

func (j *journal) close() {
	if j.out != nil {
		j.out.Close()
	}
}
