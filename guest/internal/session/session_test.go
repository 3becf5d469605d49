package session

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"releap/guest/internal/jsonlite"
	"releap/guest/internal/wire"
)

func hello(nonce string) []byte {
	return wire.Append([]byte(wire.Magic), wire.Hello, 0, []byte(`{"protocol":1,"nonce":"`+nonce+`"}`))
}

// start a server on one end of a pipe; the other end and a reader of its frames are the host's.
func start(t *testing.T, handle func(*Stream, string, jsonlite.Value) func()) (net.Conn, *wire.Reader) {
	t.Helper()
	host, guest := net.Pipe()
	t.Cleanup(func() { host.Close() })
	nothing := func(*Session) {}
	server := &Server{Handle: handle, Hello: func(*jsonlite.Writer) {}, Opened: nothing, Closed: nothing, Log: func(string) {}}
	go func() {
		_ = server.Serve(guest)
		guest.Close()
	}()
	_ = host.SetDeadline(time.Now().Add(60 * time.Second))
	return host, wire.NewReader(host)
}

func greeted(t *testing.T, r *wire.Reader, nonce string) {
	t.Helper()
	for {
		if err := r.Sync(); err != nil {
			t.Fatal(err)
		}
		f, err := r.Read(wire.MaxHello)
		if err != nil {
			t.Fatal(err)
		}
		if f.Type == wire.Hello && strings.Contains(string(f.Payload), nonce) {
			return
		}
	}
}

func echo(s *Stream, method string, _ jsonlite.Value) func() {
	return func() {
		if method == "panic" {
			panic("as asked")
		}
		var w jsonlite.Writer
		s.Result(w.Open('{').Key("method").Text(method).Close('}'))
	}
}

func send(t *testing.T, host io.Writer, frames []byte) {
	t.Helper()
	go func() { _, _ = host.Write(frames) }() // a pipe has no buffer: the guest answers while we write
}

func expect(t *testing.T, r *wire.Reader, kind byte, contains string) {
	t.Helper()
	f, err := r.Read(wire.MaxPayload)
	if err != nil {
		t.Fatal(err)
	}
	if f.Type != kind || !strings.Contains(string(f.Payload), contains) {
		t.Fatalf("got frame %d %q, want %d with %q", f.Type, f.Payload, kind, contains)
	}
}

func open(id uint32, body string) []byte { return wire.Append(nil, wire.Open, id, []byte(body)) }

func TestAnswersARequestBehindHello(t *testing.T) {
	host, r := start(t, echo)
	send(t, host, append(hello("nonce-one"), open(1, `{"method":"ping"}`)...))
	greeted(t, r, "nonce-one")
	expect(t, r, wire.Result, "ping")
}

func TestAHostThatBeginsAnewIsAnsweredAnew(t *testing.T) {
	host, r := start(t, echo)
	send(t, host, append(hello("nonce-one"), hello("nonce-two")...))
	greeted(t, r, "nonce-two")
	send(t, host, open(1, `{"method":"again"}`))
	expect(t, r, wire.Result, "again")
}

func TestHalfAFrameOfAnEarlierHostIsClearedByTheResync(t *testing.T) {
	host, r := start(t, echo)
	half := wire.Append(nil, wire.Data, 1, bytes.Repeat([]byte("y"), 60000))[:100]
	resync := append(make([]byte, wire.MaxPayload+2*wire.HeaderSize), hello("nonce-two")...)
	send(t, host, bytes.Join([][]byte{hello("nonce-one"), half, resync, open(3, `{"method":"after"}`)}, nil))
	greeted(t, r, "nonce-two")
	expect(t, r, wire.Result, "after")
}

// slow takes its time for what the end of a session says.
type slow struct{ net.Conn }

func (s slow) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(`"code":"protocol"`)) {
		time.Sleep(50 * time.Millisecond)
	}
	return s.Conn.Write(p)
}

func TestWhatTheEndOfASessionSaysComesBeforeTheNextHello(t *testing.T) {
	host, guest := net.Pipe()
	defer host.Close()
	nothing := func(*Session) {}
	server := &Server{Handle: echo, Hello: func(*jsonlite.Writer) {}, Opened: nothing, Closed: nothing, Log: func(string) {}}
	go func() { _ = server.Serve(slow{guest}) }()
	_ = host.SetDeadline(time.Now().Add(60 * time.Second))
	r := wire.NewReader(host)
	send(t, host, bytes.Join([][]byte{hello("nonce-one"), make([]byte, 100), hello("nonce-two"), open(1, `{"method":"ping"}`)}, nil))
	greeted(t, r, "nonce-two")
	expect(t, r, wire.Result, "ping")
	time.Sleep(100 * time.Millisecond)
	send(t, host, open(3, `{"method":"again"}`))
	expect(t, r, wire.Result, "again")
}

func TestAPanicInAMethodIsAnErrorOfThatRequestAlone(t *testing.T) {
	host, r := start(t, echo)
	send(t, host, append(hello("nonce-one"), open(1, `{"method":"panic"}`)...))
	greeted(t, r, "nonce-one")
	expect(t, r, wire.Error, "internal")
	send(t, host, open(3, `{"method":"alive"}`))
	expect(t, r, wire.Result, "alive")
}

func TestMalformedRequestsAreAnswered(t *testing.T) {
	host, r := start(t, echo)
	send(t, host, append(hello("nonce-one"), open(1, `{"method":`)...))
	greeted(t, r, "nonce-one")
	expect(t, r, wire.Error, "bad JSON")
}

func TestViolationsEndTheSessionButNotTheAgent(t *testing.T) {
	for name, bad := range map[string][]byte{
		"even stream":    open(2, `{}`),
		"output channel": wire.Append(nil, wire.Data, 1, []byte{1, 1}),
		"empty data":     wire.Append(nil, wire.Data, 1),
		"short window":   wire.Append(nil, wire.Window, 1, []byte{1}),
		"unknown type":   wire.Append(nil, 99, 1),
		"huge":           {0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			host, r := start(t, echo)
			send(t, host, append(hello("nonce-one"), bad...))
			greeted(t, r, "nonce-one")
			expect(t, r, wire.Error, "protocol")
			send(t, host, append(hello("nonce-two"), open(1, `{"method":"still"}`)...))
			greeted(t, r, "nonce-two")
			expect(t, r, wire.Result, "still")
		})
	}
}

func TestMoreInputThanTheWindowIsAViolation(t *testing.T) {
	host, r := start(t, func(s *Stream, _ string, _ jsonlite.Value) func() { return func() { <-s.Done() } })
	frames := append(hello("nonce-one"), open(1, `{"method":"sleep"}`)...)
	for i := 0; i < 9; i++ {
		frames = wire.Append(frames, wire.Data, 1, []byte{0}, make([]byte, 32*1024))
	}
	send(t, host, frames)
	greeted(t, r, "nonce-one")
	expect(t, r, wire.Error, "window")
}

func FuzzServer(f *testing.F) {
	f.Add(open(1, `{"method":"x"}`))
	f.Add(hello("another-nonce"))
	f.Add(wire.Append(nil, wire.Part, 1, []byte("{")))
	f.Add(wire.Append(nil, wire.Cancel, 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		nothing := func(*Session) {}
		server := &Server{Handle: echo, Hello: func(*jsonlite.Writer) {}, Opened: nothing, Closed: nothing, Log: func(string) {}}
		_ = server.Serve(struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(append(hello("nonce-one"), data...)), io.Discard})
	})
}
