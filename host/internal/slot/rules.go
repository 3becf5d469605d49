package slot

import (
	"errors"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"releap/host/internal/ruleset"
)

// Placeholder for the address of a slot in rules that are learned once for all slots. It is reserved for documentation (RFC 5737),
// so that no slot has it.
const anyHost = "192.0.2.85"

var anyHostBytes = [4]byte{192, 0, 2, 85}

// A runner has one layout of slots, and another after an upgrade.
const learnedMax = 4

var learned = struct {
	sync.Mutex
	rules map[string]*ruleset.Ruleset
}{rules: map[string]*ruleset.Ruleset{}}

// learnRules gives the netlink messages of nft for the rules of such slots, or nil if the rules do not allow it.
func (s *Slot) learnRules() *ruleset.Ruleset {
	own := regexp.MustCompile(`\b` + regexp.QuoteMeta(s.HostAddress) + `\b`)
	count := len(own.FindAllStringIndex(s.Rules, -1))
	text := own.ReplaceAllString(s.Rules, anyHost)
	learned.Lock()
	defer learned.Unlock()
	if known, isKnown := learned.rules[text]; isKnown {
		return known
	}
	var made *ruleset.Ruleset
	err := inOtherThread(func() error {
		if strings.Contains(s.Rules, anyHost) {
			return errors.New("the rules contain the placeholder address")
		}
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		// Rules of the netdev family belong to a device. The namespace goes with this thread.
		if err := makeTap(s.Tap, s.UID); err != nil {
			return err
		}
		if err := ruleset.Load(text); err != nil {
			return err
		}
		var err error
		made, err = ruleset.Learn(anyHostBytes, count)
		return err
	})
	if err != nil {
		made = nil
	}
	if len(learned.rules) >= learnedMax {
		learned.rules = map[string]*ruleset.Ruleset{}
	}
	learned.rules[text] = made
	return made
}

// loadRules loads the rules into the namespace of the calling thread.
func (s *Slot) loadRules(known *ruleset.Ruleset) error {
	if known == nil {
		return ruleset.Load(s.Rules)
	}
	var own [4]byte
	copy(own[:], address(s.HostAddress).To4())
	return known.Apply(own)
}
