// Command releap-ssh is what the SSH gateway starts in a sandbox: a server for sftp, a login shell, and a connection to
// somewhere the sandbox can reach. It lies on the system disk, so no image has to bring anything.
package main

import (
	"fmt"
	"os"
)

// Exit codes of a shell for a command that was not found, and for wrong usage.
const (
	notFound = 127
	usage    = 2
)

func main() {
	if len(os.Args) < 2 {
		fail(usage, "usage: releap-ssh sftp-server | login-shell | dial tcp HOST PORT | dial unix PATH")
	}
	switch command, args := os.Args[1], os.Args[2:]; {
	case command == "sftp-server" && len(args) == 0:
		serveSftp()
	case command == "login-shell" && len(args) == 0:
		loginShell()
	case command == "dial" && len(args) == 3 && args[0] == "tcp":
		dial("tcp", args[1], args[2])
	case command == "dial" && len(args) == 2 && args[0] == "unix":
		dial("unix", args[1], "")
	default:
		fail(usage, "unknown command")
	}
}

func fail(code int, text string) {
	fmt.Fprintln(os.Stderr, "releap-ssh: "+text)
	os.Exit(code)
}
