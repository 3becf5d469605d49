package agent

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"releap/guest/internal/boot"
	"releap/guest/internal/fault"
	"releap/guest/internal/files"
	"releap/guest/internal/jsonlite"
	"releap/guest/internal/process"
	"releap/guest/internal/session"
)

func (a *Agent) files(s *session.Stream, method string, v jsonlite.Value) error {
	p, err := files.Path(v, a.settings().Dir)
	if err != nil {
		return err
	}
	w := &jsonlite.Writer{}
	switch method {
	case "read-file":
		offset, err := v.Get("offset").Int("offset", 0, 0, 1<<62)
		if err != nil {
			return err
		}
		length, err := v.Get("length").Int("length", -1, 0, 1<<62)
		if err != nil {
			return err
		}
		return files.Read(s, p, offset, length)
	case "stat":
		follow, err := v.Get("follow").Flag("follow")
		if err != nil {
			return err
		}
		if err := files.Stat(w, p, follow); err != nil {
			return err
		}
		s.Result(w)
		return nil
	case "list-dir":
		if err := files.List(w, p); err != nil {
			return err
		}
		s.Result(w)
		return nil
	}
	if err := a.thawed(); err != nil {
		return err
	}
	switch method {
	case "write-file":
		mode, given, err := files.Mode(v, 0o644)
		if err != nil {
			return err
		}
		noParents, err := v.Get("no_parents").Flag("no_parents")
		if err != nil {
			return err
		}
		return files.Write(s, p, mode, given, !noParents)
	case "remove":
		recursive, err := v.Get("recursive").Flag("recursive")
		if err == nil {
			err = files.Remove(p, recursive)
		}
		if err != nil {
			return err
		}
	case "make-dir":
		mode, _, err := files.Mode(v, 0o755)
		if err != nil {
			return err
		}
		parents, err := v.Get("parents").Flag("parents")
		if err == nil {
			err = files.MakeDir(p, mode, parents)
		}
		if err != nil {
			return err
		}
	}
	s.Result(empty())
	return nil
}

func (a *Agent) status(s *session.Stream) error {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return err
	}
	w := &jsonlite.Writer{}
	w.Open('{').Key("uptime_s").Int(int64(info.Uptime)).Key("clock_ns").Text(strconv.FormatInt(time.Now().UnixNano(), 10))
	a.mu.Lock()
	w.Key("configured").Flag(a.configured)
	a.mu.Unlock()
	w.Key("frozen").Flag(a.freezer != nil && a.freezer.Frozen()).Key("entrypoint")
	a.entry.State().Describe(w)
	w.Key("execs").Int(int64(a.runner.Live()))
	if a.freezer != nil {
		w.Key("processes").Int(int64(a.freezer.Count()))
	}
	total, available := memory()
	w.Key("memory").Open('{').Key("total").Int(total).Key("available").Int(available).Close('}')
	var fs syscall.Statfs_t
	if err := syscall.Statfs("/", &fs); err == nil {
		size := int64(fs.Blocks) * fs.Bsize
		w.Key("disk").Open('{').Key("total").Int(size).Key("used").Int(size - int64(fs.Bfree)*fs.Bsize)
		w.Key("available").Int(int64(fs.Bavail) * fs.Bsize).Close('}')
	}
	s.Result(w.Close('}'))
	return nil
}

// slewClock takes a difference and not a time: however late the request is handled, that stays true.
func (a *Agent) slewClock(s *session.Stream, v jsonlite.Value) error {
	most := boot.SlewMax.Microseconds()
	us, err := v.Get("behind_us").Int("behind_us", 0, -most, most)
	if err != nil {
		return err
	}
	if !a.pid1 {
		return fault.New(fault.State, "the clock can only be corrected where the agent is PID 1")
	}
	if err := boot.Slew(time.Duration(us) * time.Microsecond); err != nil {
		return err
	}
	s.Result(empty())
	return nil
}

// memory in bytes, from /proc/meminfo.
func memory() (total, available int64) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0
	}
	for _, line := range strings.Split(string(text), "\n") {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "MemTotal:":
			total = kib * 1024
		case "MemAvailable:":
			available = kib * 1024
		}
	}
	return total, available
}

// others is how long processes that are not the entrypoint may take to end by themselves.
const others = time.Second

// uploads is how long what was written to object stores may take to arrive there at the end.
const uploads = 10 * time.Second

func (a *Agent) shutdown(s *session.Stream, v jsonlite.Value) error {
	ms, err := v.Get("deadline_ms").Int("deadline_ms", 10000, 0, 600000)
	if err != nil {
		return err
	}
	if a.freezer != nil && a.freezer.Frozen() {
		// Killed while frozen: none of them runs again in a sandbox that has ended.
		a.docker.Quit()
		_ = syscall.Kill(-1, syscall.SIGKILL)
		ms = 0
		if _, err := a.freezer.Thaw(); err != nil {
			a.log("releap: shutdown: " + err.Error())
		}
	}
	graceful := a.endProcesses(time.Duration(ms) * time.Millisecond)
	syscall.Sync()
	if a.freezer != nil {
		if err := a.freezer.FreezeDisk(); err != nil {
			a.log("releap: shutdown: the scratch disk is not clean: " + err.Error())
		}
	}
	w := &jsonlite.Writer{}
	s.Result(w.Open('{').Key("graceful").Flag(graceful).Close('}'))
	s.Session().Flush(time.Second)
	if !a.pid1 {
		a.stop()
		return nil
	}
	if err := syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		a.log("releap: power off: " + err.Error())
		return fault.New(fault.Internal, "power off: "+err.Error())
	}
	return nil
}

// endProcesses sends the entrypoint its stop signal, and then the container engine, waits for each until the deadline, then for
// the other processes briefly, and kills what is left; true when the entrypoint ended by itself. Without a deadline all processes
// are killed at once.
func (a *Agent) endProcesses(deadline time.Duration) bool {
	entry := a.entry.Process()
	send := func(sig syscall.Signal) {
		if a.pid1 {
			_ = syscall.Kill(-1, sig) // all but PID 1
		} else if entry != nil {
			entry.SignalGroup(sig)
		}
	}
	ended := func() bool { return hasEnded(entry) }
	gone := func() bool { return ended() && (a.freezer == nil || a.freezer.Empty()) }
	end := time.Now().Add(deadline)
	await := func(done func() bool) {
		for !done() && time.Now().Before(end) {
			time.Sleep(look)
		}
	}
	if deadline > 0 && !ended() {
		a.entry.Ask()
		await(ended)
	}
	graceful := ended()
	if engine := a.docker.Quit(); engine != nil && deadline > 0 {
		engine.Signal(syscall.SIGTERM)
		await(func() bool { return hasEnded(engine) })
	}
	if deadline > 0 && !gone() {
		send(syscall.SIGTERM)
		wait(others, gone)
		a.stores.Finish(uploads)
	}
	send(syscall.SIGKILL)
	wait(others, gone)
	return graceful
}

// hasEnded tells of no process, too, that it has.
func hasEnded(p *process.Process) bool {
	if p == nil {
		return true
	}
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}
