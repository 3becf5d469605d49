package main

import (
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
)

// accountsLimit bounds what is read of an image's /etc/passwd.
const accountsLimit = 4 << 20

type account struct{ name, shell string }

// loginShell replaces this process with the login shell of its user: the one in /etc/passwd, or the first that exists.
// Its name begins with a hyphen, which makes a shell a login shell.
func loginShell() {
	found := account{}
	if file, err := os.Open("/etc/passwd"); err == nil {
		text, _ := io.ReadAll(io.LimitReader(file, accountsLimit))
		file.Close()
		found = findAccount(string(text), os.Getuid())
	}
	if found.name != "" {
		os.Setenv("USER", found.name)
		os.Setenv("LOGNAME", found.name)
	}
	for _, shell := range []string{found.shell, "/bin/bash", "/bin/sh"} {
		if !usable(shell) {
			continue
		}
		os.Setenv("SHELL", shell)
		_ = syscall.Exec(shell, []string{"-" + path.Base(shell)}, os.Environ())
	}
	fail(notFound, "the image has no shell")
}

// usable tells whether a shell may be started. Accounts of services have programs that refuse a login: an image's user is
// often such an account, and a client of this program may run any command anyway.
func usable(shell string) bool {
	switch path.Base(shell) {
	case "nologin", "false", "true", ".", "sync":
		return false
	}
	return path.IsAbs(shell) && syscall.Access(shell, 1) == nil
}

func findAccount(passwd string, uid int) account {
	for _, line := range strings.Split(passwd, "\n") {
		fields := strings.Split(line, ":")
		if len(fields) >= 7 && fields[2] == strconv.Itoa(uid) {
			return account{name: fields[0], shell: strings.TrimSpace(fields[6])}
		}
	}
	return account{}
}
