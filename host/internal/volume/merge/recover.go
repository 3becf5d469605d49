package merge

import (
	"sort"
	"strings"

	"releap/host/internal/volume/displaced"
	"releap/host/internal/volume/tree"

	"golang.org/x/sys/unix"
)

// leftover is a file that an interrupted merge has swapped out.
type leftover struct {
	name   string
	number int
}

// recover clears up after a merge that was interrupted, and gives its conflicts, and those of merges before it whose answers may be lost:
// no commit has been accepted since.
func (m *merger) recover() (interrupted, earlier []displaced.Conflict, err error) {
	before, err := readJournal(m.state)
	if err != nil || before == nil {
		return nil, nil, err
	}
	if before.head.Root == m.base.Digest {
		return nil, before.all(), nil
	}
	if before.isDone {
		return nil, nil, nil
	}
	left, err := m.leftovers(before)
	if err != nil {
		return nil, nil, err
	}
	// Conflicts that are found on the way are added to its journal.
	if err := before.reopen(); err != nil {
		return nil, nil, err
	}
	defer before.close()
	m.journal = before
	err = m.finalize(func(finalize func(name, path string, expected *expectation) error) error {
		return before.eachPath(func(number int, path string) error {
			if len(left) == 0 || left[0].number != number {
				return nil
			}
			record, err := m.plan.index.Find(path)
			if err == nil {
				record, err = m.before(record)
			}
			var expected *expectation
			if record != nil {
				expected = &record.Entry
			}
			for ; err == nil && len(left) > 0 && left[0].number == number; left = left[1:] {
				err = finalize(left[0].name, path, expected)
			}
			return err
		})
	})
	m.journal = nil
	return m.existing(before.conflicts), before.earlier, err
}

// leftovers removes what was never swapped in, and gives what was swapped out and is not in the list of displaced files, by number.
func (m *merger) leftovers(before *journal) ([]leftover, error) {
	listed := map[string]bool{}
	err := displaced.Each(m.state, func(item *displaced.Item) error {
		if _, _, ok := before.parse(item.Name); ok {
			listed[item.Name] = true
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	names, err := tree.Names(m.displaced)
	if err != nil {
		return nil, err
	}
	var left []leftover
	for _, name := range names {
		number, ino, ok := before.parse(name)
		if !ok || listed[name] {
			continue
		}
		isOurs := strings.HasSuffix(name, "."+partial)
		if !isOurs {
			stat, err := tree.Lstat(m.displaced, name)
			if err != nil {
				return nil, err
			}
			isOurs = stat.Ino == ino
		}
		if !isOurs {
			left = append(left, leftover{name, number})
		} else if err := tree.Remove(m.displaced, name); err != nil {
			return nil, err
		}
	}
	sort.Slice(left, func(i, j int) bool { return left[i].number < left[j].number })
	return left, nil
}

// existing leaves out conflicts that a crash has kept from happening.
func (m *merger) existing(conflicts []displaced.Conflict) []displaced.Conflict {
	var found []displaced.Conflict
	for _, conflict := range conflicts {
		folder, name, err := tree.OpenParent(m.root, conflict.Kept)
		if err != nil {
			continue
		}
		if _, err = tree.Lstat(folder, name); err == nil {
			found = append(found, conflict)
		}
		unix.Close(folder)
	}
	return found
}
