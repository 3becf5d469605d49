package session

import (
	"encoding/binary"
	"io"
	"sync"

	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
	"releap/guest/internal/wire"
)

// grantAfter is how much consumed input is saved up before the host is told: three quarters of the window stay
// open meanwhile, so no other stream waits for it.
const grantAfter = wire.InitialWindow / 4

// maxChunk is the most user data one DATA frame carries.
const maxChunk = 32 * 1024

// End of a stream that did not come from its handler.
type Cause int

const (
	// Running: not ended.
	Running Cause = iota
	// Cancelled: the host has cancelled it; whatever it started is to be ended.
	Cancelled
	// Reset: the connection was lost. What was started continues without a listener.
	Reset
)

// ErrClosed is given to a handler whose stream was cancelled or reset.
var ErrClosed = fault.New(fault.Cancelled, "the stream was closed by the host")

// Stream is one request with its data.
type Stream struct {
	id   uint32
	sess *Session

	mu       sync.Mutex
	in       []byte
	lent     []byte // to the caller of Receive, and the next buffer of in
	inEnd    bool
	inWindow int
	consumed int
	credit   [3]int64
	cause    Cause
	over     bool

	inReady     chan struct{}
	creditReady [3]chan struct{}
	done        chan struct{}

	// OnWindow, set before the stream is used, sees every grant of the host. Called on the reading goroutine.
	OnWindow func(channel byte, n uint32)
}

func newStream(sess *Session, id uint32) *Stream {
	s := &Stream{id: id, sess: sess, inWindow: wire.InitialWindow, inReady: make(chan struct{}, 1), done: make(chan struct{})}
	for ch := range s.credit {
		s.credit[ch] = wire.InitialWindow
		s.creditReady[ch] = make(chan struct{}, 1)
	}
	return s
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ID of the stream, odd when the host opened it.
func (s *Stream) ID() uint32 { return s.id }

// Done is closed when the host cancelled the stream or the connection was reset.
func (s *Stream) Done() <-chan struct{} { return s.done }

// Cause of Done.
func (s *Stream) Cause() Cause {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

func (s *Stream) stop(cause Cause) {
	s.mu.Lock()
	if s.cause == Running {
		s.cause = cause
		close(s.done)
	}
	s.mu.Unlock()
}

// Receive waits for input of channel 0. io.EOF after END; ErrClosed when the stream ended; nil, nil when stop
// closed first. The bytes are the caller's until the next Receive. Call Consumed when they have been dealt with.
func (s *Stream) Receive(stop <-chan struct{}) ([]byte, error) {
	for {
		s.mu.Lock()
		data, ended := s.in, s.inEnd
		if len(data) > 0 {
			s.in, s.lent = s.lent[:0], data
			s.mu.Unlock()
			return data, nil
		}
		s.mu.Unlock()
		if ended {
			return nil, io.EOF
		}
		select {
		case <-s.inReady:
		case <-s.done:
			return nil, ErrClosed
		case <-stop:
			return nil, nil
		}
	}
}

// Consumed lets the host send n more bytes.
func (s *Stream) Consumed(n int) {
	s.mu.Lock()
	s.consumed += n
	grant := 0
	if s.consumed >= grantAfter && !s.over {
		grant, s.consumed = s.consumed, 0
		s.inWindow += grant
	}
	s.mu.Unlock()
	if grant > 0 {
		var p [5]byte
		p[0] = wire.Stdin
		binary.BigEndian.PutUint32(p[1:], uint32(grant))
		s.sess.out.send(wire.Window, s.id, p[:])
	}
}

// Credit waits until the host accepts bytes on a channel, and returns how many (at most maxChunk). Zero means that
// the stream is over, or that stop closed.
func (s *Stream) Credit(channel byte, stop <-chan struct{}) int {
	for {
		s.mu.Lock()
		credit, over := s.credit[channel], s.over || s.cause != Running
		s.mu.Unlock()
		if over {
			return 0
		}
		if credit > maxChunk {
			return maxChunk
		}
		if credit > 0 {
			return int(credit)
		}
		select {
		case <-s.creditReady[channel]:
		case <-s.done:
			return 0
		case <-stop:
			return 0
		}
	}
}

// Put sends what Credit has allowed, without waiting.
func (s *Stream) Put(channel byte, data []byte) {
	s.mu.Lock()
	s.credit[channel] -= int64(len(data))
	open := !s.over && s.cause == Running
	s.mu.Unlock()
	if open {
		s.sess.out.send(wire.Data, s.id, []byte{channel}, data)
	}
}

// Send sends all of data as credit allows. ErrClosed when no host reads it any more.
func (s *Stream) Send(channel byte, data []byte) error {
	for len(data) > 0 {
		n := s.Credit(channel, nil)
		if n == 0 {
			return ErrClosed
		}
		if n > len(data) {
			n = len(data)
		}
		s.Put(channel, data[:n])
		data = data[n:]
	}
	return nil
}

// End says that no more data comes on a channel.
func (s *Stream) End(channel byte) { s.sess.out.send(wire.End, s.id, []byte{channel}) }

// finish takes the stream off the session; false when it was over already.
func (s *Stream) finish() bool {
	s.mu.Lock()
	was := s.over
	s.over = true
	s.in, s.lent = nil, nil
	s.mu.Unlock()
	s.sess.forget(s.id)
	return !was
}

// Result closes the stream with its answer, a JSON object.
func (s *Stream) Result(w *jsonlite.Writer) {
	if !s.finish() {
		return
	}
	if len(w.Bytes()) > wire.MaxPayload {
		s.sess.message(wire.Result, s.id, w.Bytes())
	} else {
		s.sess.out.answer(wire.Result, s.id, w.Bytes())
	}
}

// Fail closes the stream with an error.
func (s *Stream) Fail(err error) {
	if !s.finish() {
		return
	}
	text := err.Error()
	if len(text) > 2048 {
		text = text[:2048]
	}
	var w jsonlite.Writer
	w.Open('{').Key("code").Text(fault.Code(err)).Key("message").Text(text).Close('}')
	s.sess.out.answer(wire.Error, s.id, w.Bytes())
}

func (s *Stream) receive(data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inEnd {
		return wire.Violation("data after the end of the channel")
	}
	if len(data) > s.inWindow {
		return wire.Violation("more data than the window allows")
	}
	if s.over { // the handler is done, the host does not know yet
		return nil
	}
	s.inWindow -= len(data)
	s.in = append(s.in, data...)
	nudge(s.inReady)
	return nil
}

func (s *Stream) ended() {
	s.mu.Lock()
	s.inEnd = true
	s.mu.Unlock()
	nudge(s.inReady)
}

func (s *Stream) grant(channel byte, n uint32) error {
	s.mu.Lock()
	s.credit[channel] += int64(n)
	tooMuch := s.credit[channel] > 1<<31
	s.mu.Unlock()
	if tooMuch {
		return wire.Violation("window larger than 2 GiB")
	}
	nudge(s.creditReady[channel])
	if s.OnWindow != nil {
		s.OnWindow(channel, n)
	}
	return nil
}
