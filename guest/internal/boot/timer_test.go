package boot

import (
	"strings"
	"testing"
)

const qemuHz = 62_500_000

// timerList is what a kernel shows after its timers, on a machine whose broadcast device is never used.
func timerList(devices ...string) string {
	var b strings.Builder
	b.WriteString("Timer List Version: v0.9\ncpu: 0\n clock 0:\n  .offset:     0 nsecs\n\n")
	b.WriteString("Tick Device: mode:     1\nBroadcast device\nClock Event Device: <NULL>\ntick_broadcast_mask: 0\n\n")
	for _, device := range devices {
		b.WriteString("Tick Device: mode:     1\nPer CPU device: 0\nClock Event Device: " + device + "\n\n")
	}
	return b.String()
}

func lapic(mult string) string {
	return "lapic\n max_delta_ns:   34359875825\n min_delta_ns:   1000\n mult:           " + mult +
		"\n shift:          32\n mode:           3"
}

func TestATimerThatWasMeasuredRightIsAccepted(t *testing.T) {
	for _, mult := range []string{"268434382", "268435456", "261000000", "276000000"} {
		if err := checkTimerList(timerList(lapic("268435456"), lapic(mult)), qemuHz); err != nil {
			t.Errorf("mult %s: %v", mult, err)
		}
	}
}

func TestATimerThatWasMeasuredWrongIsRefused(t *testing.T) {
	for _, mult := range []string{"26843545", "250000000", "290000000", "4000000000"} {
		if err := checkTimerList(timerList(lapic("268435456"), lapic(mult)), qemuHz); err == nil {
			t.Errorf("mult %s was accepted", mult)
		}
	}
}

func TestACPUWithoutATimerIsRefused(t *testing.T) {
	for _, hz := range []uint64{0, qemuHz} {
		if checkTimerList(timerList("<NULL>"), hz) == nil || checkTimerList(timerList(lapic("268435456"), "<NULL>"), hz) == nil {
			t.Errorf("a kernel without a timer was accepted (%d Hz)", hz)
		}
	}
}

func TestOtherTimersAndUnknownFrequenciesAreNotJudged(t *testing.T) {
	other := strings.Replace(lapic("9878424"), "lapic", "lapic-deadline", 1)
	if err := checkTimerList(timerList(other), qemuHz); err != nil {
		t.Error(err)
	}
	if err := checkTimerList(timerList(lapic("1")), 0); err != nil {
		t.Error(err)
	}
}
