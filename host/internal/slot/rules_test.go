package slot

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"releap/host/internal/hosttest"
	"releap/host/internal/ruleset"
)

// All that rules of slots are made of: packages/runner/test/network-slots.test.ts compares the runner's own.
const rules = `
table netdev guard {
  chain frames {
    type filter hook ingress device "tap0" priority 0; policy drop;
    ether saddr 02:72:6c:00:00:02 ether type arp accept
    ether saddr 02:72:6c:00:00:02 ip saddr 172.16.0.2 accept
  }
}
table inet sandbox {
  set denied {
    type ipv4_addr . inet_proto . inet_service . mark; size 512; flags dynamic,timeout; timeout 1h; counter;
  }
  chain refuse {
    meta l4proto tcp meta mark != 0 update @denied { ip daddr . meta l4proto . th dport . meta mark }
    meta l4proto tcp reject with tcp reset
    reject with icmpx admin-prohibited
  }
  chain slot_dnat {
    type nat hook prerouting priority dstnat; policy accept;
    iifname "tap0" ip daddr 172.16.0.1 udp dport 53 dnat ip to 100.64.0.1
    iifname "up0" dnat ip to 172.16.0.2
  }
  chain slot_snat {
    type nat hook postrouting priority srcnat; policy accept;
    oifname "up0" ip saddr 172.16.0.2 masquerade
  }
  chain slot_forward {
    type filter hook forward priority filter; policy drop;
    ip daddr 100.64.0.1 udp dport 53 limit rate over 200/second burst 400 packets drop
    ct state established,related accept
    ct count over 4096 jump refuse
  }
}
`

// listed is what nft says of the rules that work puts into a new namespace.
func listed(t *testing.T, work func() error) string {
	t.Helper()
	var output []byte
	err := inOtherThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		if err := makeTap("tap0", 70_000); err != nil {
			return err
		}
		if err := work(); err != nil {
			return err
		}
		var err error
		output, err = exec.Command("nft", "list", "ruleset").CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatal(err, string(output))
	}
	return string(output)
}

func TestLearnedRulesAreWhatNftMakesOfTheText(t *testing.T) {
	hosttest.NeedsRoot(t, "it makes namespaces")
	s := &Slot{Tap: "tap0", UID: 70_000, Rules: rules}
	known, err := s.learnRules()
	if err != nil {
		t.Fatal(err)
	}
	want := listed(t, func() error { _, err := ruleset.Learn(rules); return err })
	if got := listed(t, known.Apply); got != want || got == "" {
		t.Errorf("%s\nis not\n%s", got, want)
	}
	if again, err := s.learnRules(); again != known || err != nil {
		t.Error("slots of one layout were learned twice", err)
	}
}

func TestRulesThatCannotBeLearnedAreRefused(t *testing.T) {
	hosttest.NeedsRoot(t, "it makes namespaces")
	for _, text := range []string{
		"table inet sandbox {\nset some { type ipv4_addr; }\n}",
		"table inet sandbox {\nchain c {\nip daddr { 10.0.0.1, 10.0.0.2 } accept\n}\n}",
		"no rules",
	} {
		s := &Slot{Tap: "tap0", UID: 70_000, Rules: text}
		if _, err := s.learnRules(); err == nil {
			t.Errorf("%s was learned", text)
		}
	}
}
