package boot

import (
	"reflect"
	"testing"
)

func TestDependenciesOfModules(t *testing.T) {
	needs := parseDependencies("kernel/net/802/stp.ko: kernel/net/llc/llc.ko\n" +
		"kernel/net/bridge/br-netfilter.ko: kernel/net/bridge/bridge.ko kernel/net/802/stp.ko\nkernel/net/llc/llc.ko:\n\nnothing\n")
	want := map[string][]string{
		"stp":          {"kernel/net/802/stp.ko", "kernel/net/llc/llc.ko"},
		"br_netfilter": {"kernel/net/bridge/br-netfilter.ko", "kernel/net/bridge/bridge.ko", "kernel/net/802/stp.ko"},
		"llc":          {"kernel/net/llc/llc.ko"},
	}
	if !reflect.DeepEqual(needs, want) {
		t.Errorf("got %v", needs)
	}
}
