// Package fault holds the errors that cross the wire and the guard that keeps PID 1 alive.
package fault

import (
	"errors"
	"runtime/debug"
	"syscall"
)

// Codes a host may rely on. Anything else is Internal.
const (
	NotFound    = "not_found"
	Exists      = "exists"
	IsDirectory = "is_directory"
	NotDir      = "not_directory"
	Permission  = "permission"
	NoSpace     = "no_space"
	Invalid     = "invalid"
	NotEmpty    = "not_empty"
	Frozen      = "frozen"
	State       = "state"
	TooLarge    = "too_large"
	Cancelled   = "cancelled"
	Internal    = "internal"
)

// Error is what an ERROR frame carries.
type Error struct{ Code, Message string }

func (e *Error) Error() string { return e.Message }

// New makes an error with one of the codes above.
func New(code, message string) *Error { return &Error{code, message} }

// Code of any error: its own, or what its errno means to a caller.
func Code(err error) string {
	var own *Error
	if errors.As(err, &own) {
		return own.Code
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return Internal
	}
	switch errno {
	case syscall.ENOENT, syscall.ESRCH:
		return NotFound
	case syscall.EEXIST:
		return Exists
	case syscall.EISDIR:
		return IsDirectory
	case syscall.ENOTDIR:
		return NotDir
	case syscall.EACCES, syscall.EPERM, syscall.EROFS:
		return Permission
	case syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG:
		return NoSpace
	case syscall.ENOTEMPTY:
		return NotEmpty
	case syscall.EINVAL, syscall.ENAMETOOLONG, syscall.ELOOP, syscall.ENXIO:
		return Invalid
	}
	return Internal
}

// Guard is deferred at the top of every goroutine: a panic ends that piece of work, never PID 1
// (whose death is a kernel panic for the user's sandbox).
func Guard(log func(string), what string) {
	if p := recover(); p != nil {
		text := "unknown panic"
		switch v := p.(type) {
		case error:
			text = v.Error()
		case string:
			text = v
		}
		log("releap: recovered in " + what + ": " + text + "\n" + string(debug.Stack()))
	}
}
