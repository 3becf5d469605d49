package agent

import (
	"strconv"
	"time"

	"releap/guest/internal/boot"
	"releap/guest/internal/fault"
	"releap/guest/internal/freeze"
	"releap/guest/internal/jsonlite"
	"releap/guest/internal/session"
)

func parseCapture(v jsonlite.Value) (r freeze.Request, err error) {
	deadline, err := v.Get("deadline_ms").Int("deadline_ms", 30000, 100, 600000)
	if err != nil {
		return r, err
	}
	freezeLimit, err := v.Get("settle_ms").Int("settle_ms", 5000, 10, 60000)
	if err != nil {
		return r, err
	}
	processesOnly, err := v.Get("processes_only").Flag("processes_only")
	if err != nil {
		return r, err
	}
	diskOnly, err := v.Get("disk_only").Flag("disk_only")
	if err != nil {
		return r, err
	}
	flushOnly, err := v.Get("flush_only").Flag("flush_only")
	if err != nil {
		return r, err
	}
	if processesOnly && diskOnly || processesOnly && flushOnly || diskOnly && flushOnly {
		return r, fault.New(fault.Invalid, "processes_only, disk_only and flush_only exclude one another")
	}
	r.Processes, r.Disk, r.Flush = !diskOnly, !processesOnly && !flushOnly, flushOnly
	r.Deadline, r.FreezeLimit = time.Duration(deadline)*time.Millisecond, time.Duration(freezeLimit)*time.Millisecond
	return r, nil
}

// freeze responds immediately if possible, else it returns the rest of the work.
func (a *Agent) freeze(s *session.Stream, v jsonlite.Value) func() {
	if a.freezer == nil {
		s.Fail(fault.New(fault.State, "this agent cannot freeze: it does not run as PID 1 of a sandbox"))
		return nil
	}
	r, err := parseCapture(v)
	if err != nil {
		s.Fail(err)
		return nil
	}
	c := a.freezer.Start(r)
	if c.Done() {
		answerCapture(s, c)
		c.Guard()
		return nil
	}
	return func() {
		c.Wait()
		c.Guard()
		answerCapture(s, c)
	}
}

// answerCapture reports a freeze. Without a stream it only does the work of that: for the warm-up of a freeze.
func answerCapture(s *session.Stream, c *freeze.Capture) {
	durations, err := c.Result()
	if err != nil {
		if s != nil {
			s.Fail(err)
		}
		return
	}
	w := &jsonlite.Writer{}
	w.Open('{').Key("in_kernel").Flag(durations.InKernel)
	steps(w, durations)
	w.Close('}')
	if s != nil {
		s.Result(w)
	}
}

func steps(w *jsonlite.Writer, durations freeze.Durations) {
	w.Key("steps_us").Open('{').Key("wait").Int(durations.Wait.Microseconds())
	w.Key("processes").Int(durations.Processes.Microseconds()).Key("disk").Int(durations.Disk.Microseconds()).Close('}')
}

// thawAtOnce thaws if only processes are frozen and the freezer is not locked. @returns false if thaw must follow
func (a *Agent) thawAtOnce(s *session.Stream, v jsonlite.Value) bool {
	clock, err := boot.ParseClock(v)
	if err != nil {
		s.Fail(err)
		return true
	}
	if err := clock.Set(); err != nil {
		s.Fail(err)
		return true
	}
	durations, done := a.freezer.TryThaw()
	if done {
		answerThaw(s, durations)
	}
	return done
}

func (a *Agent) thaw(s *session.Stream, v jsonlite.Value) error {
	clock, err := boot.ParseClock(v)
	if err != nil {
		return err
	}
	var durations freeze.Durations
	if a.freezer != nil {
		if err := clock.Set(); err != nil {
			return err
		}
		durations, err = a.freezer.Thaw()
	}
	if err == nil {
		answerThaw(s, durations)
	}
	return err
}

// answerThaw reports the clock, so that the host can check it.
func answerThaw(s *session.Stream, durations freeze.Durations) {
	w := &jsonlite.Writer{}
	w.Open('{').Key("clock_ns").Text(strconv.FormatInt(time.Now().UnixNano(), 10))
	steps(w, durations)
	s.Result(w.Close('}'))
}
