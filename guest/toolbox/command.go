package main

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"

	"releap/guest/internal/process"
)

const envMax = 4 << 20

// command prepares a program with the sandbox's user, environment and working directory. It leads a session of its own, so
// that a signal to its group reaches all that it has started.
func (c *call) command(dir string, env map[string]string, argv ...string) (*exec.Cmd, error) {
	user, err := c.user()
	if err != nil {
		return nil, err
	}
	variables, err := c.environment(env)
	if err != nil {
		return nil, err
	}
	if dir == "" {
		dir = c.dir()
	} else if dir, err = c.absolute(dir); err != nil {
		return nil, err
	}
	if err := process.CheckDir(dir); err != nil {
		return nil, err
	}
	all := process.Environment(variables, user, false)
	path, bad := process.Find(argv[0], all, dir)
	if bad != nil {
		return nil, &failure{501, bad.Text}
	}
	return &exec.Cmd{
		Path: path, Args: argv, Env: all, Dir: dir,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Credential: credential(user)},
	}, nil
}

// environment is that of the sandbox, and over it what a request gives.
func (c *call) environment(own map[string]string) (map[string]string, error) {
	all := make(map[string]string, len(c.set.Env)+len(own))
	size := 0
	for name, value := range c.set.Env {
		all[name] = value
	}
	for name, value := range own {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.IndexByte(value, 0) >= 0 {
			return nil, badRequest("the environment variable %q is not allowed: names have no '=', and neither has NUL", name)
		}
		if size += len(name) + len(value); size > envMax {
			return nil, badRequest("the environment is larger than %d bytes", envMax)
		}
		all[name] = value
	}
	return all, nil
}

func credential(user process.User) *syscall.Credential {
	return &syscall.Credential{Uid: user.UID, Gid: user.GID, Groups: user.Groups}
}

// firstProgram is the first of these that the sandbox has.
func (c *call) firstProgram(names ...string) (string, error) {
	user, err := c.user()
	if err != nil {
		return "", err
	}
	env := process.Environment(c.set.Env, user, false)
	for _, name := range names {
		if path, bad := process.Find(name, env, c.dir()); bad == nil {
			return path, nil
		}
	}
	return "", &failure{501, fmt.Sprintf("the image has no %s", strings.Join(names, " or "))}
}

// exitCode as a shell counts: 128 + the number of the signal that ended it.
func exitCode(state syscall.WaitStatus) int {
	if state.Signaled() {
		return 128 + int(state.Signal())
	}
	return state.ExitStatus()
}

// endGroup ends a process group at once.
func endGroup(pid int) {
	if pid > 1 {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
}
