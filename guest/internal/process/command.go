package process

import (
	"errors"
	"os"
	"sort"
	"strings"
	"syscall"

	"releap/guest/internal/fault"
)

const nonblock = syscall.O_NONBLOCK

// Exit codes of a command that could not be started, as POSIX shells use them.
const (
	CannotExecute   = 126
	CommandNotFound = 127
)

// DefaultPath is used where the environment names none.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// StartError tells why a command did not start, with the exit code a shell would give.
type StartError struct {
	Exit int
	Text string
}

func (e *StartError) Error() string { return e.Text }

// Environment turns a map into the form execve wants, adding PATH, HOME, HOSTNAME (and TERM on a terminal)
// where they are missing. What the user gave is never changed.
func Environment(env map[string]string, user User, terminal bool) []string {
	out := make([]string, 0, len(env)+4)
	for k, v := range env {
		if k == "" || strings.IndexByte(k, 0) >= 0 || strings.IndexByte(k, '=') >= 0 || strings.IndexByte(v, 0) >= 0 {
			continue // no process can be given such a variable
		}
		out = append(out, k+"="+v)
	}
	add := func(k, v string) {
		if _, ok := env[k]; !ok {
			out = append(out, k+"="+v)
		}
	}
	add("PATH", DefaultPath)
	add("HOME", user.Home)
	if name, err := os.Hostname(); err == nil {
		add("HOSTNAME", name)
	}
	if terminal {
		add("TERM", "xterm-256color")
	}
	sort.Strings(out)
	return out
}

// Find resolves a command name against the PATH of its environment and the folder it will run in.
func Find(name string, env []string, dir string) (string, *StartError) {
	if name == "" {
		return "", &StartError{CommandNotFound, "empty command"}
	}
	if strings.IndexByte(name, '/') >= 0 {
		path := name
		if path[0] != '/' {
			path = join(dir, path)
		}
		return path, executable(path, name)
	}
	search := DefaultPath
	for _, entry := range env {
		if strings.HasPrefix(entry, "PATH=") {
			search = entry[len("PATH="):]
		}
	}
	var refused *StartError
	for _, folder := range strings.Split(search, ":") {
		if folder == "" || folder[0] != '/' {
			folder = join(dir, folder)
		}
		path := join(folder, name)
		switch err := executable(path, name); {
		case err == nil:
			return path, nil
		case err.Exit == CannotExecute && refused == nil:
			refused = err
		}
	}
	if refused != nil {
		return "", refused
	}
	return "", &StartError{CommandNotFound, name + ": command not found"}
}

func join(dir, name string) string {
	if dir == "" || dir[len(dir)-1] != '/' {
		dir += "/"
	}
	return dir + name
}

func executable(path, name string) *StartError {
	var st syscall.Stat_t
	switch err := syscall.Stat(path, &st); {
	case err == syscall.ENOENT || err == syscall.ENOTDIR:
		return &StartError{CommandNotFound, name + ": no such file"}
	case err != nil:
		return &StartError{CannotExecute, name + ": " + err.Error()}
	case st.Mode&syscall.S_IFMT == syscall.S_IFDIR:
		return &StartError{CannotExecute, name + ": is a directory"}
	case st.Mode&0o111 == 0:
		return &StartError{CannotExecute, name + ": not executable"}
	}
	return nil
}

// explain says what a failed execve means.
func explain(err error, path string) *StartError {
	switch {
	case errors.Is(err, syscall.ENOENT):
		return &StartError{CommandNotFound, path + ": its interpreter or loader does not exist in this image"}
	case errors.Is(err, syscall.ENOEXEC):
		return &StartError{CannotExecute, path + ": not in a format this machine can run"}
	case errors.Is(err, syscall.EACCES):
		return &StartError{CannotExecute, path + ": permission denied (for the file, its interpreter or the working directory)"}
	case errors.Is(err, syscall.E2BIG):
		return &StartError{CannotExecute, path + ": arguments and environment are too large"}
	}
	return &StartError{CannotExecute, path + ": " + err.Error()}
}

// CheckDir verifies a working directory before a process is given it, so that its error is not taken for the
// command's.
func CheckDir(dir string) error {
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		return fault.New(fault.Code(err), "working directory "+dir+": "+err.Error())
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return fault.New(fault.NotDir, "working directory "+dir+" is not a directory")
	}
	return nil
}
