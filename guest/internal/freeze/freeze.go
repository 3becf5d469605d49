// Package freeze stops user processes and the writable file system while the host takes a snapshot.
package freeze

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"releap/guest/internal/fault"
)

const (
	fiFreeze = 0xC0045877
	fiThaw   = 0xC0045878
	// settle is how long the processes may take to stop; one in an uninterruptible sleep holds everybody up.
	settle = 5 * time.Second
)

// Freezer holds every user process in one freezer control group.
//
// It is the version 1 freezer, on a mount of its own that user space never sees: in version 1 a single thread
// can change group, so the thread that forks enters the group first and the child is born in it, with no
// moment in which it runs free. All of cgroup v2 stays the user's (a container engine wants to own it).
type Freezer struct {
	mu      sync.Mutex
	user    *os.File
	top     *os.File
	state   *os.File
	group   *os.File
	scratch *os.File
	timer   *time.Timer
	frozen  bool
	log     func(string)
}

// Open the freezer mounted at dir and make the group of the user's processes.
func Open(dir string, log func(string)) (*Freezer, error) {
	group := dir + "/user"
	if err := os.Mkdir(group, 0o700); err != nil && !os.IsExist(err) {
		return nil, err
	}
	folder, err := os.Open(group)
	if err != nil {
		return nil, err
	}
	f := &Freezer{log: log, group: folder}
	for _, part := range []struct {
		file **os.File
		path string
	}{{&f.user, group + "/tasks"}, {&f.top, dir + "/tasks"}, {&f.state, group + "/freezer.state"}} {
		var err error
		if *part.file, err = os.OpenFile(part.path, os.O_RDWR, 0); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// SetScratch names the file system that Freeze stops, by any open file on it.
func (f *Freezer) SetScratch(dir *os.File) { f.scratch = dir }

// Enter puts the calling thread among the user's; it must be locked to its goroutine. Holds the freezer.
func (f *Freezer) Enter() error {
	f.mu.Lock()
	if f.frozen {
		f.mu.Unlock()
		return fault.New(fault.Frozen, "the sandbox is frozen")
	}
	if _, err := f.user.WriteAt([]byte("0"), 0); err != nil {
		f.mu.Unlock()
		return err
	}
	return nil
}

// Leave takes the thread back.
func (f *Freezer) Leave() {
	defer f.mu.Unlock()
	if _, err := f.top.WriteAt([]byte("0"), 0); err != nil {
		f.log("releap: a thread of the agent stays among the user's: " + err.Error())
	}
}

// Frozen tells whether Freeze is in force.
func (f *Freezer) Frozen() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.frozen
}

// Empty tells whether no user process is left.
func (f *Freezer) Empty() bool { return f.Count() == 0 }

// Count of the user's threads, exact up to some thousands. The file is opened anew each time: the kernel keeps
// the list that an open one has shown for a second.
func (f *Freezer) Count() int {
	fd, err := syscall.Openat(int(f.group.Fd()), "tasks", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer syscall.Close(fd)
	buf := make([]byte, 64*1024)
	n, err := syscall.Read(fd, buf)
	if err != nil {
		return 0
	}
	return strings.Count(string(buf[:n]), "\n")
}

// Freeze stops all user processes and, with disk, flushes and stops the scratch file system, which takes as long as
// there is to write. Without disk it is for a host that keeps the memory too. If nobody thaws within the deadline,
// the sandbox thaws itself: a host that died must not leave it dead.
func (f *Freezer) Freeze(deadline time.Duration, disk bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.frozen {
		return fault.New(fault.Frozen, "the sandbox is frozen already")
	}
	if err := f.stopProcesses(); err != nil {
		_ = f.set("THAWED")
		return err
	}
	if disk && f.scratch != nil {
		if err := control(f.scratch, fiFreeze); err != nil {
			_ = f.set("THAWED")
			return fault.New(fault.Internal, "freezing the file system: "+err.Error())
		}
	}
	f.frozen = true
	f.timer = time.AfterFunc(deadline, func() {
		f.log("releap: nobody thawed the sandbox within " + deadline.String() + "; it thaws by itself")
		_ = f.Thaw()
	})
	return nil
}

// Thaw undoes Freeze; thawing what is not frozen is no error.
func (f *Freezer) Thaw() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.frozen {
		return nil
	}
	f.timer.Stop()
	if f.scratch != nil {
		if err := control(f.scratch, fiThaw); err != nil && err != syscall.EINVAL {
			return fault.New(fault.Internal, "thawing the file system: "+err.Error())
		}
	}
	f.frozen = false
	return f.set("THAWED")
}

// ThawDisk lets the agent write (new identity files) while the user's processes still stand.
func (f *Freezer) ThawDisk() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.frozen || f.scratch == nil {
		return nil
	}
	if err := control(f.scratch, fiThaw); err != nil && err != syscall.EINVAL {
		return fault.New(fault.Internal, "thawing the file system: "+err.Error())
	}
	return nil
}

// FreezeDisk for good: what is left on it is clean, as after an unmount. Used on the way to power off.
func (f *Freezer) FreezeDisk() error {
	if f.scratch == nil {
		return nil
	}
	return control(f.scratch, fiFreeze)
}

func (f *Freezer) set(state string) error {
	_, err := f.state.WriteAt([]byte(state), 0)
	return err
}

func (f *Freezer) stopProcesses() error {
	for end := time.Now().Add(settle); ; time.Sleep(time.Millisecond) {
		if err := f.set("FROZEN"); err != nil {
			return err
		}
		var buf [32]byte
		n, err := f.state.ReadAt(buf[:], 0)
		if n == 0 && err != nil {
			return err
		}
		if strings.HasPrefix(string(buf[:n]), "FROZEN") {
			return nil
		}
		if time.Now().After(end) {
			return fault.New(fault.State, "a process of the sandbox cannot be stopped (it waits in the kernel); tried for "+
				strconv.Itoa(int(settle/time.Second))+" s")
		}
	}
}

func control(file *os.File, request uintptr) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, file.Fd(), request, 0); errno != 0 {
		return errno
	}
	return nil
}
