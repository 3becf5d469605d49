// Package docker runs the container engine of an image that was prepared for Docker.
package docker

import (
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"releap/guest/internal/fault"
	"releap/guest/internal/process"
)

const (
	// DataDir is where the engine keeps its images and containers.
	DataDir = "/var/lib/docker"

	program    = "dockerd"
	socketPath = "/var/run/docker.sock"
	pidPath    = "/var/run/docker.pid"
	logPath    = "/var/log/dockerd.log"
	// socketGroup may use the engine, where the image has such a group.
	socketGroup = "docker"
	backlog     = 128

	// A run that ends sooner than steady after its start counts as a failed start, and the next one waits twice as long.
	steady    = time.Minute
	firstWait = time.Second
	lastWait  = time.Minute
)

// Engine keeps dockerd running. Its clients need not wait until it is ready: the socket exists from Start on, and what
// connects meanwhile is served then.
type Engine struct {
	table *process.Table
	log   func(string)
	quit  chan struct{}

	mu       sync.Mutex
	quitting bool
	running  *process.Process
}

// New engine, which does not run yet.
func New(table *process.Table, log func(string)) *Engine {
	return &Engine{table: table, log: log, quit: make(chan struct{})}
}

// Start the engine with these variables, once prepare has returned. It is started again when it ends. Errors are in its log.
func (e *Engine) Start(env map[string]string, prepare func()) {
	_ = os.Rename(logPath, logPath+".1") // of the boot before
	socket := e.listen()
	go func() {
		defer fault.Guard(e.log, "docker")
		prepare()
		e.keep(env, socket)
	}()
}

// keep it running until Quit.
func (e *Engine) keep(env map[string]string, socket *os.File) {
	for wait := firstWait; ; {
		begun := time.Now()
		e.run(env, socket)
		// Clients get an error while it does not run, rather than no answer.
		if socket != nil {
			_ = os.Remove(socketPath)
			socket.Close()
		}
		_ = os.Remove(pidPath)
		if time.Since(begun) >= steady {
			wait = firstWait
		}
		select {
		case <-e.quit:
			return
		case <-time.After(wait):
		}
		if wait *= 2; wait > lastWait {
			wait = lastWait
		}
		socket = e.listen()
	}
}

// run it until it ends.
func (e *Engine) run(env map[string]string, socket *os.File) {
	out, err := openLog()
	if err != nil {
		e.log("releap: " + logPath + ": " + err.Error())
		return
	}
	defer out.Close()
	say := func(text string) { _, _ = out.WriteString("releap: " + text + "\n") }
	if socket == nil {
		say(socketPath + " cannot be listened on")
		return
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		say(err.Error())
		return
	}
	defer null.Close()
	all := environment(env)
	path, bad := process.Find(program, all, "/")
	if bad != nil {
		say(bad.Error())
		return
	}
	proc, bad := e.table.Start(process.Spec{
		Path: path, Argv: []string{program, "--host", "fd://"}, Env: all, Dir: "/",
		User:  process.User{Name: "root", Home: "/root"},
		Files: [3]uintptr{null.Fd(), out.Fd(), out.Fd()}, Sockets: []uintptr{socket.Fd()},
	})
	if bad != nil {
		say(bad.Error())
		return
	}
	e.mu.Lock()
	e.running = proc
	quitting := e.quitting
	e.mu.Unlock()
	if quitting {
		proc.Signal(syscall.SIGTERM)
	}
	<-proc.Done()
	e.mu.Lock()
	e.running = nil
	e.mu.Unlock()
	say(program + " " + proc.Status().String())
}

// environment of the engine: that of the sandbox, such as a proxy. Programs that it needs lie where an image's own search path
// may not lead.
func environment(env map[string]string) []string {
	all := make(map[string]string, len(env)+2)
	for k, v := range env {
		all[k] = v
	}
	all["HOME"] = "/root"
	if path := all["PATH"]; path != "" {
		all["PATH"] = path + ":" + process.DefaultPath
	}
	return process.Environment(all, process.User{Home: "/root"}, false)
}

// Quit asks it to end, which ends its containers, and does not start it again. The answer is nil when it does not run.
func (e *Engine) Quit() *process.Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.quitting {
		e.quitting = true
		close(e.quit)
	}
	return e.running
}

// listen on the socket of the engine; nil when that cannot be.
func (e *Engine) listen() *os.File {
	file, err := listen()
	if err != nil {
		e.log("releap: " + socketPath + ": " + err.Error())
		return nil
	}
	return file
}

func listen() (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(socketPath), 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(socketPath); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), socketPath)
	if err := share(fd); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// share the socket with the members of its group.
func share(fd int) error {
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: socketPath}); err != nil {
		return err
	}
	gid := 0
	if user, err := process.LookupUser("", "0:"+socketGroup); err == nil {
		gid = int(user.GID)
	}
	if err := os.Chown(socketPath, 0, gid); err != nil {
		return err
	}
	if err := os.Chmod(socketPath, 0o660); err != nil {
		return err
	}
	return syscall.Listen(fd, backlog)
}

// openLog opens the engine's log. An image may have something else under that name, such as a FIFO without a reader.
func openLog() (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(logPath), 0o755); err != nil {
		return nil, err
	}
	const flags = syscall.O_WRONLY | syscall.O_CREAT | syscall.O_APPEND | syscall.O_NONBLOCK | syscall.O_CLOEXEC
	fd, err := syscall.Open(logPath, flags, 0o640)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), logPath)
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		file.Close()
		return nil, fault.New(fault.Invalid, "it is not a regular file")
	}
	return file, nil
}
