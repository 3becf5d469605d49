// Package hostkeys gives the SSH server of a sandbox that is a copy of another one host keys of its own.
package hostkeys

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"releap/guest/internal/fault"
	"releap/guest/internal/process"
)

// patience bounds the making of one key: an emulated guest may search for primes for many seconds.
const patience = 2 * time.Minute

// The kinds of keys that OpenSSH makes, the quickest first.
var kinds = []string{"ed25519", "ecdsa", "rsa"}

// Keys renews the host keys of one sandbox.
type Keys struct {
	table   *process.Table
	log     func(string)
	program string
	folder  string
	pidFile string
	// A copy of this memory may be made while keys are made. Its own renewal then comes after what the copy continues.
	mu sync.Mutex
}

// New Keys of OpenSSH.
func New(table *process.Table, log func(string)) *Keys {
	return &Keys{table: table, log: log, program: "ssh-keygen", folder: "/etc/ssh", pidFile: "/run/sshd.pid"}
}

// Renew replaces, in the background, each key that the server has, and no others. A server that runs reads them again. A key that
// cannot be made stays as it is.
func (k *Keys) Renew() {
	go func() {
		defer fault.Guard(k.log, "host keys")
		k.renew()
	}()
}

func (k *Keys) renew() {
	k.mu.Lock()
	defer k.mu.Unlock()
	renewed := false
	for _, kind := range kinds {
		path := filepath.Join(k.folder, "ssh_host_"+kind+"_key")
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
			continue
		}
		if err := k.replace(kind, path); err != nil {
			k.log("the SSH host key " + path + " is still that of another sandbox: " + err.Error())
			continue
		}
		renewed = true
	}
	if renewed {
		k.reload()
	}
}

// replace makes the key beside the old one, so that a server that starts meanwhile finds one.
func (k *Keys) replace(kind, path string) error {
	made := path + ".releap"
	defer os.Remove(made)
	defer os.Remove(made + ".pub")
	for _, left := range []string{made, made + ".pub"} {
		if err := os.RemoveAll(left); err != nil {
			return err
		}
	}
	if err := k.run(k.program, "-q", "-t", kind, "-N", "", "-C", "", "-f", made); err != nil {
		return err
	}
	if err := os.Rename(made, path); err != nil {
		return err
	}
	return os.Rename(made+".pub", path+".pub")
}

func (k *Keys) run(argv ...string) error {
	root := process.User{Name: "root", Home: "/root"}
	env := process.Environment(map[string]string{}, root, false)
	program, bad := process.Find(argv[0], env, "/")
	if bad != nil {
		return bad
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	files := [3]uintptr{null.Fd(), null.Fd(), null.Fd()}
	running, bad := k.table.Start(process.Spec{Path: program, Argv: argv, Env: env, Dir: "/", User: root, Files: files})
	if bad != nil {
		return bad
	}
	late := time.AfterFunc(patience, func() { running.SignalGroup(syscall.SIGKILL) })
	defer late.Stop()
	<-running.Done()
	if status := running.Status(); status.Code != 0 {
		return fault.New(fault.Internal, argv[0]+" "+status.String())
	}
	return nil
}

// reload has the server that runs read its keys again.
func (k *Keys) reload() {
	text, err := os.ReadFile(k.pidFile)
	if err != nil {
		return
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return
	}
	name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil || strings.TrimSpace(string(name)) != "sshd" {
		return
	}
	_ = syscall.Kill(pid, syscall.SIGHUP)
}
