package boot

import (
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
)

// backLimit is by how much the clock may be ahead of the host's time without being set: the time in a request is as old as its
// transfer takes, and programs tolerate a clock that is slightly fast better than one that steps back.
const backLimit = 100 * time.Millisecond

// Clock is the host's time in Unix nanoseconds; 0 if the request had none.
type Clock int64

// ParseClock reads clock_ns of a request.
func ParseClock(v jsonlite.Value) (Clock, error) {
	text, err := v.Get("clock_ns").Text("clock_ns")
	if err != nil {
		return 0, fault.New(fault.Invalid, "clock_ns must be a decimal string (it does not fit a JSON number)")
	}
	if text == "" {
		return 0, nil
	}
	ns, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ns <= 0 {
		return 0, fault.New(fault.Invalid, "clock_ns must be a decimal string of Unix nanoseconds")
	}
	return Clock(ns), nil
}

// Set the real-time clock. The monotonic one is not changed.
func (c Clock) Set() error {
	if c == 0 {
		return nil
	}
	if ahead := time.Now().UnixNano() - int64(c); ahead >= 0 && ahead < int64(backLimit) {
		return nil
	}
	ts := syscall.NsecToTimespec(int64(c))
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_SETTIME, 0, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		return fault.New(fault.Internal, "clock: "+errno.Error())
	}
	return nil
}

// SlewMax is by how much a clock can be corrected without a step: the kernel makes it faster or slower by 500 ppm, so a second takes
// half an hour.
const SlewMax = time.Second

// Slew corrects the real-time clock by that much, positive where it is behind, gradually: no program sees a step. It replaces what
// is left of an earlier correction, and a clock that is set ends it.
func Slew(by time.Duration) error {
	const offsetSingleShot = 0x8001 // ADJ_OFFSET_SINGLESHOT of adjtimex(2), in microseconds
	if _, err := syscall.Adjtimex(&syscall.Timex{Modes: offsetSingleShot, Offset: by.Microseconds()}); err != nil {
		return fault.New(fault.Internal, "clock: "+err.Error())
	}
	return nil
}
