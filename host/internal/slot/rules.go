package slot

import (
	"sync"

	"golang.org/x/sys/unix"

	"releap/host/internal/ruleset"
)

// A runner has one layout of slots, and another after an upgrade.
const learnedMax = 4

var learned = struct {
	sync.Mutex
	rules map[string]*ruleset.Ruleset
}{rules: map[string]*ruleset.Ruleset{}}

// learnRules gives the netlink messages of nft for the rules, which all slots of a layout have.
func (s *Slot) learnRules() (*ruleset.Ruleset, error) {
	learned.Lock()
	defer learned.Unlock()
	if known, isKnown := learned.rules[s.Rules]; isKnown {
		return known, nil
	}
	var made *ruleset.Ruleset
	err := inOtherThread(func() (err error) {
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		// Rules of the netdev family belong to a device. The namespace goes with this thread.
		if err = makeTap(s.Tap, s.UID); err != nil {
			return err
		}
		made, err = ruleset.Learn(s.Rules)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(learned.rules) >= learnedMax {
		learned.rules = map[string]*ruleset.Ruleset{}
	}
	learned.rules[s.Rules] = made
	return made, nil
}
