package boot

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// timerTolerance is by how much the measured frequency of a timer may differ from the true one, in percent. So much earlier or
// later do programs wake up.
const timerTolerance = 5

// CheckTimers tells whether the kernel of this boot has a working timer for every CPU. The kernel measures the frequency of the
// local APIC's timer during 100 ms of its boot. On a host that holds the machine up meanwhile it measures a wrong one, or finds
// the timer too slow and uses none: nothing that sleeps wakes up then, in this boot and in every copy of its memory.
// hz is the true frequency; 0 when it is not known.
func CheckTimers(hz uint64) error {
	text, err := os.ReadFile("/proc/timer_list")
	if err != nil {
		return nil // a kernel without that file does not tell
	}
	return checkTimerList(string(text), hz)
}

// checkTimerList reads the clock event devices of the CPUs, which follow the timers.
func checkTimerList(text string, hz uint64) error {
	perCPU, lapic := false, false
	var mult, found uint64
	for _, line := range strings.Split(text, "\n") {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch name {
		case "Tick Device", "Broadcast device":
			perCPU = false
		case "Per CPU device":
			perCPU, lapic = true, false
		case "Clock Event Device":
			if !perCPU {
				continue
			}
			if value == "<NULL>" {
				return errors.New("the kernel uses no timer")
			}
			lapic = value == "lapic"
		case "mult":
			mult, _ = strconv.ParseUint(value, 10, 32)
		case "shift":
			shift, err := strconv.ParseUint(value, 10, 6)
			if err != nil || !perCPU || !lapic || hz == 0 {
				continue
			}
			found = mult * 1_000_000_000 >> shift
			if found*100 < hz*(100-timerTolerance) || found*100 > hz*(100+timerTolerance) {
				return errors.New("the kernel measured " + strconv.FormatUint(found, 10) + " Hz of a timer that has " +
					strconv.FormatUint(hz, 10) + " Hz")
			}
		}
	}
	return nil
}

// Abandon resets the machine at once, with that text as the last line on its console. It waits for nothing, neither for the
// terminal nor for devices: without timers no wait ends.
func Abandon(text string) error {
	// The kernel writes its own messages itself, and those of this level also when it is quiet.
	_ = os.WriteFile("/dev/kmsg", []byte("<0>"+text), 0)
	if err := os.WriteFile("/proc/sysrq-trigger", []byte("b"), 0); err != nil {
		return syscall.Reboot(syscall.LINUX_REBOOT_CMD_RESTART)
	}
	return nil
}
