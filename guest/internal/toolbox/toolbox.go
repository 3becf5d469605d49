// Package toolbox starts the toolbox daemon of the sandbox when it is needed, and connects the host to it.
package toolbox

import (
	"encoding/binary"
	"os"
	"sync"
	"syscall"
	"time"

	"releap/guest/internal/exec"
	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
	"releap/guest/internal/process"
)

// Program is the daemon on the system disk.
const Program = "/usr/lib/releap/toolboxd"

// patience bounds how long the daemon may take to read the settings of a connection.
const patience = 20 * time.Second

// Daemon is a process of its own, with root's rights, in the group of processes that a capture freezes. It listens nowhere: its
// standard input is a socket over which it receives connections (SCM_RIGHTS), so that no process of the sandbox but this one
// can connect to it.
type Daemon struct {
	table *process.Table
	path  string

	mu      sync.Mutex
	proc    *process.Process
	control int
}

// New daemon, which does not run yet.
func New(table *process.Table, path string) *Daemon {
	return &Daemon{table: table, path: path, control: -1}
}

// Connect opens a connection, and starts the daemon if it does not run. The settings are those of its requests.
func (d *Daemon) Connect(settings exec.Defaults) (*os.File, error) {
	fd, err := d.connect()
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "toolbox")
	_ = file.SetWriteDeadline(time.Now().Add(patience))
	if _, err := file.Write(preamble(settings)); err != nil {
		file.Close()
		return nil, fault.New(fault.State, "the toolbox of the sandbox does not respond: "+err.Error())
	}
	_ = file.SetWriteDeadline(time.Time{})
	return file, nil
}

// preamble precedes the bytes of the host on each connection: u32 length, and {env, user, dir} as JSON.
func preamble(settings exec.Defaults) []byte {
	var w jsonlite.Writer
	w.Open('{').Key("env").Open('{')
	for name, value := range settings.Env {
		w.Key(name).Text(value)
	}
	w.Close('}').Key("user").Text(settings.User).Key("dir").Text(settings.Dir).Close('}')
	body := w.Bytes()
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body))), body...)
}

func (d *Daemon) connect() (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for attempt := 0; ; attempt++ {
		if err := d.start(); err != nil {
			return -1, err
		}
		pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
		if err != nil {
			return -1, err
		}
		err = syscall.Sendmsg(d.control, []byte{0}, syscall.UnixRights(pair[1]), nil, syscall.MSG_NOSIGNAL)
		syscall.Close(pair[1])
		if err == nil {
			return pair[0], nil
		}
		syscall.Close(pair[0])
		if err == syscall.EAGAIN || attempt > 0 {
			return -1, fault.New(fault.State, "the toolbox of the sandbox does not accept connections: "+err.Error())
		}
		d.proc = nil // it has ended just now
	}
}

// start the daemon if it does not run. Called under the lock.
func (d *Daemon) start() error {
	if d.proc != nil {
		select {
		case <-d.proc.Done():
		default:
			return nil
		}
	}
	if d.control >= 0 {
		syscall.Close(d.control)
		d.control = -1
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	null, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
	if err != nil {
		syscall.Close(pair[0])
		syscall.Close(pair[1])
		return err
	}
	root := process.User{Name: "root", Home: "/root"}
	env := map[string]string{}
	// Where the agent is PID 1 it has none.
	if folder := os.Getenv("TMPDIR"); folder != "" {
		env["TMPDIR"] = folder
	}
	proc, bad := d.table.Start(process.Spec{
		Path: d.path, Argv: []string{"toolboxd"}, Env: process.Environment(env, root, false), Dir: "/", User: root,
		Files: [3]uintptr{uintptr(pair[1]), null.Fd(), 2},
	})
	null.Close()
	syscall.Close(pair[1])
	if bad != nil {
		syscall.Close(pair[0])
		return fault.New(fault.NotFound, "the toolbox of the sandbox does not start: "+bad.Text)
	}
	d.proc, d.control = proc, pair[0]
	return nil
}
