// Package session multiplexes requests and their data over one byte stream (docs/guest-protocol.md).
package session

import (
	"encoding/binary"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"

	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
	"releap/guest/internal/wire"
)

const (
	// maxStreams open at once; one more is answered with an error.
	maxStreams = 256
	// maxPending bounds the PART bytes waiting for their OPEN, over all streams.
	maxPending = 2 * wire.MaxMessage
)

// Server answers a host, one connection at a time.
type Server struct {
	// Handle takes requests in the order of their arrival and returns a function that then runs on a goroutine of its own and
	// ends with Result or Fail. Nil if the request was answered already, for requests that must be answered fast.
	Handle func(s *Stream, method string, params jsonlite.Value) func()
	// Hello adds members to the HELLO object.
	Hello func(w *jsonlite.Writer)
	// Opened is called once HELLO is answered, Closed when the session has ended.
	Opened func(*Session)
	Closed func(*Session)
	Log    func(string)
}

// Session is the exchange between two HELLOs.
type Session struct {
	server *Server
	out    *writer

	mu      sync.Mutex
	streams map[uint32]*Stream
	pending map[uint32][]byte
	waiting int
	nextID  uint32
	closed  bool
}

// Serve serves the host over rw until reading fails; io.EOF when the host has disconnected. It never panics.
func (sv *Server) Serve(rw io.ReadWriter) (err error) {
	defer fault.Guard(sv.Log, "session")
	in := wire.NewReader(rw)
	var sess *Session
	defer func() { // also after a panic: a session without a reader must not stay open
		if sess != nil {
			sess.close(err)
		}
	}()
	synced := false
	var last *writer
	for {
		if !synced {
			if err := in.Sync(); err != nil {
				return err
			}
		}
		synced = false
		sess, last, err = sv.greet(in, rw, last)
		if err == nil {
			err = sess.run(in)
			sess.close(err)
			sess = nil
		}
		if errors.Is(err, wire.ErrHello) {
			synced = true
			continue
		}
		if !errors.Is(err, wire.ErrFrame) {
			return err
		}
		sv.Log("releap: host connection: " + err.Error())
	}
}

// greet answers a HELLO, with a writer that follows the last one. It returns the last writer there is.
func (sv *Server) greet(in *wire.Reader, rw io.ReadWriter, last *writer) (*Session, *writer, error) {
	f, err := in.Read(wire.MaxHello)
	if err != nil {
		return nil, last, err
	}
	if f.Type != wire.Hello {
		return nil, last, wire.Violation("the first frame is not HELLO")
	}
	v, err := jsonlite.Parse(f.Payload)
	if err != nil {
		return nil, last, wire.Violation("HELLO: " + err.Error())
	}
	nonce, err := v.Get("nonce").Text("nonce")
	if err != nil || len(nonce) < 8 || len(nonce) > 128 {
		return nil, last, wire.Violation("HELLO without a nonce of 8 to 128 characters")
	}
	sess := &Session{server: sv, out: newWriter(rw, sv.Log, last), streams: map[uint32]*Stream{}, pending: map[uint32][]byte{}, nextID: 2}
	var w jsonlite.Writer
	w.Open('{').Key("protocol").Int(wire.Protocol).Key("nonce").Text(nonce)
	sv.Hello(&w)
	w.Close('}')
	sess.out.hello(w.Bytes())
	if version, err := v.Get("protocol").Int("protocol", 0, 0, 1<<30); err != nil || version != wire.Protocol {
		sess.close(wire.Violation("the host does not speak protocol " + strconv.Itoa(wire.Protocol)))
		return nil, sess.out, wire.Violation("the host does not speak protocol " + strconv.Itoa(wire.Protocol))
	}
	sv.Opened(sess)
	return sess, sess.out, nil
}

func (sess *Session) run(in *wire.Reader) error {
	for {
		f, err := in.Read(wire.MaxPayload)
		if err != nil {
			return err
		}
		if err := sess.dispatch(f); err != nil {
			return err
		}
	}
}

func (sess *Session) close(cause error) {
	told := errors.Is(cause, wire.ErrFrame)
	if told {
		var w jsonlite.Writer
		w.Open('{').Key("code").Text("protocol").Key("message").Text(cause.Error()).Close('}')
		sess.out.send(wire.Error, 0, w.Bytes())
	}
	sess.mu.Lock()
	sess.closed = true
	streams := sess.streams
	sess.streams = map[uint32]*Stream{}
	sess.pending = nil
	sess.mu.Unlock()
	for _, s := range streams {
		s.stop(Reset)
	}
	sess.out.close(told)
	sess.server.Closed(sess)
}

func (sess *Session) stream(id uint32) *Stream {
	sess.mu.Lock()
	defer sess.mu.Unlock()
	return sess.streams[id]
}

func (sess *Session) forget(id uint32) {
	sess.mu.Lock()
	delete(sess.streams, id)
	sess.mu.Unlock()
}

// Find an open stream: signal and resize name another stream of the same session.
func (sess *Session) Find(id uint32) *Stream { return sess.stream(id) }

// Session the stream belongs to.
func (s *Stream) Session() *Session { return s.sess }

// Open starts a stream from the guest's side. Nil when the session is gone.
func (sess *Session) Open(method string, params func(*jsonlite.Writer), onWindow func(byte, uint32)) *Stream {
	sess.mu.Lock()
	if sess.closed {
		sess.mu.Unlock()
		return nil
	}
	s := newStream(sess, sess.nextID)
	s.OnWindow = onWindow
	sess.nextID += 2
	sess.streams[s.id] = s
	sess.mu.Unlock()
	var w jsonlite.Writer
	w.Open('{').Key("method").Text(method)
	params(&w)
	sess.message(wire.Open, s.id, w.Close('}').Bytes())
	return s
}

// Event sends a message that needs no response and may be lost with the connection.
func (sess *Session) Event(w *jsonlite.Writer) { sess.out.send(wire.Event, 0, w.Bytes()) }

// Flush waits until the host has read what was sent, or patience ends.
func (sess *Session) Flush(patience time.Duration) {
	for end := time.Now().Add(patience); !sess.out.idle() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// message sends JSON of any length up to MaxMessage, in PART frames when one frame is too small.
func (sess *Session) message(kind byte, id uint32, body []byte) {
	for len(body) > wire.MaxPayload {
		sess.out.send(wire.Part, id, body[:wire.MaxPayload])
		body = body[wire.MaxPayload:]
	}
	sess.out.send(kind, id, body)
}

func (sess *Session) dispatch(f wire.Frame) error {
	switch f.Type {
	case wire.Open:
		return sess.open(f)
	case wire.Part:
		return sess.part(f)
	case wire.Data:
		if len(f.Payload) < 1 || f.Payload[0] != wire.Stdin {
			return wire.Violation("DATA on a channel that is not 0")
		}
		if s := sess.stream(f.Stream); s != nil {
			return s.receive(f.Payload[1:])
		}
	case wire.Window:
		if len(f.Payload) != 5 || f.Payload[0] > wire.Stderr {
			return wire.Violation("malformed WINDOW")
		}
		if s := sess.stream(f.Stream); s != nil {
			return s.grant(f.Payload[0], binary.BigEndian.Uint32(f.Payload[1:]))
		}
	case wire.End:
		if len(f.Payload) != 1 || f.Payload[0] != wire.Stdin {
			return wire.Violation("END on a channel that is not 0")
		}
		if s := sess.stream(f.Stream); s != nil {
			s.ended()
		}
	case wire.Cancel:
		if s := sess.stream(f.Stream); s != nil {
			s.stop(Cancelled)
		}
	case wire.Ping:
		if len(f.Payload) > 256 {
			return wire.Violation("PING of more than 256 bytes")
		}
		sess.out.answer(wire.Pong, f.Stream, f.Payload)
	case wire.Hello:
		return wire.Violation("HELLO without its magic")
	}
	return nil
}

func (sess *Session) part(f wire.Frame) error {
	if f.Stream%2 == 0 || sess.stream(f.Stream) != nil {
		return wire.Violation("PART on a stream that the host cannot open")
	}
	if sess.waiting += len(f.Payload); sess.waiting > maxPending || len(sess.pending[f.Stream])+len(f.Payload) > wire.MaxMessage {
		return wire.Violation("a request of more than 4 MiB")
	}
	sess.pending[f.Stream] = append(sess.pending[f.Stream], f.Payload...)
	return nil
}

func (sess *Session) open(f wire.Frame) error {
	if f.Stream%2 == 0 {
		return wire.Violation("the host opened a stream with an even id")
	}
	body := f.Payload
	if head, ok := sess.pending[f.Stream]; ok {
		body = append(head, body...)
		sess.waiting -= len(head)
		delete(sess.pending, f.Stream)
	}
	s := newStream(sess, f.Stream)
	sess.mu.Lock()
	_, twice := sess.streams[f.Stream]
	full := len(sess.streams) >= maxStreams
	if !twice && !full {
		sess.streams[f.Stream] = s
	}
	sess.mu.Unlock()
	if twice {
		return wire.Violation("stream " + strconv.FormatUint(uint64(f.Stream), 10) + " is open already")
	}
	if full {
		s.Fail(fault.New(fault.State, "more than "+strconv.Itoa(maxStreams)+" requests at once"))
		return nil
	}
	params, err := jsonlite.Parse(body)
	if err != nil {
		s.Fail(fault.New(fault.Invalid, err.Error()))
		return nil
	}
	method, err := params.Get("method").Text("method")
	if err != nil {
		s.Fail(err)
		return nil
	}
	work := sess.server.Handle(s, method, params)
	if work == nil {
		return nil
	}
	go func() {
		defer s.Fail(fault.New(fault.Internal, "the agent gave up on "+method)) // no effect after an answer
		defer fault.Guard(sess.server.Log, method)
		work()
	}()
	return nil
}
