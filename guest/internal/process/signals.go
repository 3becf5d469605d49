package process

import (
	"strconv"
	"strings"
	"syscall"

	"releap/guest/internal/fault"
)

var signals = map[string]syscall.Signal{
	"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "USR1": 10,
	"SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15, "STKFLT": 16, "CHLD": 17, "CONT": 18, "STOP": 19,
	"TSTP": 20, "TTIN": 21, "TTOU": 22, "URG": 23, "XCPU": 24, "XFSZ": 25, "VTALRM": 26, "PROF": 27,
	"WINCH": 28, "IO": 29, "PWR": 30, "SYS": 31,
}

// rtMin is signal(7)'s SIGRTMIN as C libraries have it: they keep the first two for themselves.
const rtMin = 34

// ParseSignal reads "TERM", "SIGTERM" or "15".
func ParseSignal(s string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(s); err == nil && n >= 1 && n <= 64 {
		return syscall.Signal(n), nil
	}
	name := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	if sig, ok := signals[name]; ok {
		return sig, nil
	}
	// As libc counts them; systemd in an image asks for RTMIN+3.
	if offset := strings.TrimPrefix(name, "RTMIN"); offset != name {
		if n, err := strconv.Atoi("0" + strings.TrimPrefix(offset, "+")); err == nil && n <= 30 {
			return syscall.Signal(rtMin + n), nil
		}
	}
	return 0, fault.New(fault.Invalid, "unknown signal "+strconv.Quote(s)+"; use a name such as SIGTERM or a number from 1 to 64")
}

// SignalName is "SIGTERM" for 15, and the number for one without a name.
func SignalName(sig syscall.Signal) string {
	for name, n := range signals {
		if n == sig {
			return "SIG" + name
		}
	}
	return strconv.Itoa(int(sig))
}
