// Package store mounts object stores: each by a process of its own, which serves the mount until it is unmounted.
package store

import (
	"bufio"
	"bytes"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"releap/guest/internal/boot"
	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
	"releap/guest/internal/process"
)

const (
	mountPatience   = 30 * time.Second
	unmountPatience = 50 * time.Second // it waits for uploads, itself bounded
	killPatience    = 5 * time.Second
	mostMounts      = 8
	longestLine     = 4096
)

// modules that mounts need. Where the kernel has it built in, none is found.
var modules = []string{"fuse"}

// Spec of a mount, as the host sends it; the program reads all of it.
type Spec struct {
	Path string
	json []byte
}

// Parse checks what the agent itself uses.
func Parse(v jsonlite.Value) (s Spec, err error) {
	w := &jsonlite.Writer{}
	w.Open('{')
	for _, name := range []string{"path", "endpoint", "bucket", "prefix", "region", "provider", "access_key", "secret_key"} {
		text, err := v.Get(name).Text("mount." + name)
		if err != nil {
			return s, err
		}
		if name == "path" {
			s.Path = text
		}
		w.Key(name).Text(text)
	}
	readOnly, err := v.Get("read_only").Flag("mount.read_only")
	if err != nil {
		return s, err
	}
	seconds, err := v.Get("dir_cache_secs").Int("mount.dir_cache_secs", 0, 0, 86400)
	if err != nil {
		return s, err
	}
	if !strings.HasPrefix(s.Path, "/") {
		return s, fault.New(fault.Invalid, "mount.path must be absolute")
	}
	s.json = w.Key("read_only").Flag(readOnly).Key("dir_cache_secs").Int(seconds).Close('}').Bytes()
	return s, nil
}

// Mounts of the sandbox.
type Mounts struct {
	table *process.Table
	log   func(string)

	prepare sync.Once
	modules *boot.Modules

	receiving sync.Mutex // held while the program is received

	mu      sync.Mutex
	paths   map[string]*mount
	program *program // nil while nothing is mounted
}

type mount struct {
	json  []byte
	proc  *process.Process // nil while it starts
	lines chan string      // what the program says; closed when it has ended
}

// New set of mounts, which is empty.
func New(table *process.Table, log func(string)) *Mounts {
	return &Mounts{table: table, log: log, paths: map[string]*mount{}}
}

// UseModules of the guest's kernel, when the first mount needs them.
func (m *Mounts) UseModules(modules *boot.Modules) { m.modules = modules }

// Mount resolves when programs see all of them. They start at once: each takes a moment, and none asks its server. in is the
// request's input, on which the offered program follows.
func (m *Mounts) Mount(offer *Offer, in Input, specs ...Spec) error {
	if len(specs) == 0 {
		return nil
	}
	program, err := m.use(offer, in)
	if err != nil {
		return err
	}
	defer m.leave(program)
	done := make(chan error, len(specs))
	for _, spec := range specs {
		go func(spec Spec) { done <- m.mount(spec, program) }(spec)
	}
	var first error
	for range specs {
		if err := <-done; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Has tells whether this very mount is there already.
func (m *Mounts) Has(s Spec) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := m.paths[s.Path]
	return found != nil && found.proc != nil && !hasEnded(found.proc) && bytes.Equal(found.json, s.json)
}

// mount one. The host may have lost the answer to an earlier request: the same one again changes nothing, and another mount of that
// path, which the host does not know of any more, is replaced.
func (m *Mounts) mount(s Spec, program *program) error {
	m.prepare.Do(func() { m.modules.Load(modules, m.log) })
	made := &mount{json: s.json, lines: make(chan string, 8)}
	m.mu.Lock()
	old := m.paths[s.Path]
	if old != nil && old.proc == nil {
		m.mu.Unlock()
		return fault.New(fault.Exists, s.Path+" is being mounted")
	}
	if old != nil && !hasEnded(old.proc) {
		m.mu.Unlock()
		if bytes.Equal(old.json, s.json) {
			return nil
		}
		if err := m.Unmount(s.Path); err != nil {
			return err
		}
		return m.mount(s, program)
	}
	if len(m.paths) >= mostMounts && old == nil {
		m.mu.Unlock()
		return fault.New(fault.TooLarge, "the sandbox has 8 mounts, which is the most allowed")
	}
	m.paths[s.Path] = made
	m.mu.Unlock()
	err := m.start(made, s, program)
	if err == nil {
		if err = made.await(mountPatience, "mounted"); err != nil {
			made.proc.Signal(syscall.SIGKILL)
			made.ended(killPatience)
		}
	}
	if err != nil {
		m.forget(s.Path, made)
		return fault.New(fault.State, "mount "+s.Path+": "+err.Error())
	}
	return nil
}

// Unmount refuses while files there are open or wait to be uploaded. A path that is not mounted is no error.
func (m *Mounts) Unmount(path string) error {
	m.mu.Lock()
	found := m.paths[path]
	m.mu.Unlock()
	if found == nil {
		return nil
	}
	if found.proc == nil {
		return fault.New(fault.State, path+" is being mounted")
	}
	found.drain()
	if found.proc.Signal(syscall.SIGUSR1) {
		if err := found.await(unmountPatience, ""); err != nil {
			return fault.New(fault.State, "unmount "+path+": "+err.Error())
		}
	}
	if !found.ended(killPatience) {
		return fault.New(fault.State, "unmount "+path+": it does not end")
	}
	m.forget(path, found)
	return nil
}

// Finish asks all mounts to upload what was written and to end, and waits no longer than that.
func (m *Mounts) Finish(most time.Duration) {
	m.mu.Lock()
	var all []*process.Process
	for _, one := range m.paths {
		if one.proc != nil && one.proc.Signal(syscall.SIGUSR2) {
			all = append(all, one.proc)
		}
	}
	m.mu.Unlock()
	end := time.After(most)
	for _, proc := range all {
		select {
		case <-proc.Done():
		case <-end:
			return
		}
	}
}

func (m *Mounts) forget(path string, gone *mount) {
	m.mu.Lock()
	if m.paths[path] == gone {
		delete(m.paths, path)
		m.freeUnused()
	}
	m.mu.Unlock()
}

func (m *Mounts) start(made *mount, s Spec, program *program) error {
	in, config, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	defer config.Close()
	said, out, err := os.Pipe()
	if err != nil {
		return err
	}
	root := process.User{Name: "root", Home: "/root"}
	proc, bad := m.table.Start(process.Spec{
		Path: program.path(), Argv: []string{"storemount"}, Env: process.Environment(map[string]string{}, root, false),
		Dir: "/", User: root, Files: [3]uintptr{in.Fd(), out.Fd(), 2},
	})
	out.Close()
	if bad != nil {
		said.Close()
		return bad
	}
	m.mu.Lock()
	made.proc = proc
	m.mu.Unlock()
	go made.read(said, m.log)
	// Less than a pipe holds, so this never waits for the program.
	_, err = config.Write(append(s.json, '\n'))
	return err
}

// read what the program says, until it has ended.
func (o *mount) read(said *os.File, log func(string)) {
	defer fault.Guard(log, "store")
	defer said.Close()
	defer close(o.lines)
	lines := bufio.NewScanner(said)
	lines.Buffer(make([]byte, 0, 512), longestLine)
	for lines.Scan() {
		select {
		case o.lines <- lines.Text():
		default: // no caller waits for it
		}
	}
}

func (o *mount) drain() {
	for {
		select {
		case _, open := <-o.lines:
			if !open {
				return
			}
		default:
			return
		}
	}
}

// await a word of the program; the empty one stands for its end without an error.
func (o *mount) await(patience time.Duration, word string) error {
	late := time.After(patience)
	for {
		select {
		case line, open := <-o.lines:
			switch {
			case open && line == word:
				return nil
			case open && line == "busy":
				return fault.New(fault.State, "files in it are open")
			case open && strings.HasPrefix(line, "pending "):
				return fault.New(fault.State, strings.TrimPrefix(line, "pending ")+" of its files are not uploaded yet")
			case open && strings.HasPrefix(line, "error: "):
				return fault.New(fault.State, strings.TrimPrefix(line, "error: "))
			case !open && word == "":
				return nil
			case !open:
				return fault.New(fault.State, "the program has ended")
			}
		case <-late:
			return fault.New(fault.State, "the program does not respond")
		}
	}
}

func (o *mount) ended(patience time.Duration) bool {
	select {
	case <-o.proc.Done():
		return true
	case <-time.After(patience):
		return false
	}
}

func hasEnded(p *process.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}
