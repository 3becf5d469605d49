package exec

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"releap/guest/internal/fault"
	"releap/guest/internal/process"
	"releap/guest/internal/session"
	"releap/guest/internal/wire"
)

var buffers = sync.Pool{New: func() interface{} { b := make([]byte, 32*1024); return &b }}

// source is one output of a command.
type source struct {
	file    *os.File
	fd      int
	channel byte
}

func pipe() (r, w int, err error) {
	var p [2]int
	err = syscall.Pipe2(p[:], syscall.O_CLOEXEC)
	return p[0], p[1], err
}

// pollable hands a descriptor to the runtime's poller.
func pollable(fd int, name string) *os.File {
	_ = syscall.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), name)
}

func (r *Runner) start(stream *session.Stream, req Request, spec process.Spec) (*command, *process.StartError, error) {
	c := &command{stream: stream}
	var ours, theirs []int
	closeAll := func(fds []int) {
		for _, fd := range fds {
			syscall.Close(fd)
		}
	}
	defer func() { closeAll(theirs) }()
	if req.TTY {
		master, slave, err := process.OpenTerminal(req.Rows, req.Cols, spec.User)
		if err != nil {
			return nil, nil, fault.New(fault.Internal, "terminal: "+err.Error())
		}
		ours, theirs = []int{master}, []int{slave}
		spec.Files = [3]uintptr{uintptr(slave), uintptr(slave), uintptr(slave)}
	} else {
		null, err := syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			return nil, nil, err
		}
		theirs = append(theirs, null)
		spec.Files[0] = uintptr(null)
		for i := 1; i <= 2; i++ {
			r, w, err := pipe()
			if err != nil {
				closeAll(ours)
				return nil, nil, err
			}
			ours, theirs = append(ours, r), append(theirs, w)
			spec.Files[i] = uintptr(w)
		}
		if req.Stdin {
			r, w, err := pipe()
			if err != nil {
				closeAll(ours)
				return nil, nil, err
			}
			ours, theirs = append(ours, w), append(theirs, r)
			spec.Files[0] = uintptr(r)
		}
	}
	proc, bad := r.table.Start(spec)
	if bad != nil {
		closeAll(ours)
		return nil, bad, nil
	}
	c.proc = proc
	if req.TTY {
		c.master = pollable(ours[0], "terminal")
		r.pump(c, source{c.master, ours[0], wire.Stdout})
		r.feed(c, c.master, true)
		return c, nil, nil
	}
	r.pump(c, source{pollable(ours[0], "stdout"), ours[0], wire.Stdout})
	r.pump(c, source{pollable(ours[1], "stderr"), ours[1], wire.Stderr})
	if req.Stdin {
		r.feed(c, pollable(ours[2], "stdin"), false)
	}
	return c, nil, nil
}

// drain is called once the leader has ended: everything it wrote is in the pipes, so there is no need to wait for
// other processes that still have the other ends open.
func (c *command) drain() {
	past := time.Unix(1, 0)
	for _, file := range c.outputs {
		_ = file.SetReadDeadline(past)
	}
	if c.input != nil {
		_ = c.input.SetWriteDeadline(past)
	}
}

// pump carries output to the host until the command has ended and its pipe is empty. Should others still hold
// the pipe (a server put into the background), the rest is read and thrown away: a closed pipe would kill them.
func (r *Runner) pump(c *command, src source) {
	c.pumps.Add(1)
	c.outputs = append(c.outputs, src.file)
	go func() {
		defer src.file.Close()
		defer fault.Guard(r.log, "output")
		open := c.carry(src)
		c.stream.End(src.channel)
		c.pumps.Done()
		if open {
			_ = src.file.SetReadDeadline(time.Time{})
			discard(src.file)
		}
	}()
}

// carry reads and sends; true when a process may still write to the pipe.
func (c *command) carry(src source) bool {
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	ended := false
	for {
		credit := c.stream.Credit(src.channel, nil)
		if credit == 0 {
			credit = len(*b) // no host listens: Put drops it
		}
		n, err := 0, error(nil)
		if ended {
			n, err = syscall.Read(src.fd, (*b)[:credit])
			if err == nil && n == 0 {
				err = io.EOF
			}
		} else {
			n, err = src.file.Read((*b)[:credit])
		}
		if n > 0 {
			c.stream.Put(src.channel, (*b)[:n])
		}
		switch {
		case err == nil, err == syscall.EINTR:
		case errors.Is(err, os.ErrDeadlineExceeded):
			ended = true
		case err == syscall.EAGAIN:
			return true
		default: // EOF; EIO on a terminal whose other end is closed
			return false
		}
	}
}

func discard(file *os.File) {
	var small [4096]byte
	for {
		if _, err := file.Read(small[:]); err != nil {
			return
		}
	}
}

// feed carries the host's input to the command.
func (r *Runner) feed(c *command, to *os.File, terminal bool) {
	c.input = to
	go func() {
		defer fault.Guard(r.log, "input")
		if !terminal {
			defer to.Close()
		}
		for {
			data, err := c.stream.Receive(c.proc.Done())
			if err == io.EOF && terminal {
				_, _ = to.Write([]byte{4}) // what a keyboard sends for "no more": VEOF
			}
			if err != nil || data == nil {
				return
			}
			if _, err := to.Write(data); err != nil {
				return
			}
			c.stream.Consumed(len(data))
		}
	}()
}
