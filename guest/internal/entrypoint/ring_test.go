package entrypoint

import (
	"strings"
	"testing"

	"releap/guest/internal/session"
	"releap/guest/internal/wire"
)

func kept(r *Ring) string {
	var b strings.Builder
	for _, p := range r.pieces {
		b.Write(p.data[p.acked:])
	}
	return b.String()
}

func TestWithoutAHostTheOldestOutputGoes(t *testing.T) {
	r := NewRing(func(string) {})
	for i := 0; i < 100; i++ {
		r.Append(wire.Stdout, []byte(strings.Repeat(string(rune('a'+i%26)), 10000)))
	}
	if r.size > ringLimit {
		t.Errorf("holds %d bytes", r.size)
	}
	text := kept(r)
	if !strings.HasSuffix(text, strings.Repeat("v", 10000)) {
		t.Error("the newest output is missing")
	}
	if r.start[wire.Stdout]+int64(len(text)) != 1000000 {
		t.Errorf("starts at %d with %d bytes kept", r.start[wire.Stdout], len(text))
	}
}

func TestOnlyWhatWasSentCanBeAcknowledged(t *testing.T) {
	r := NewRing(func(string) {})
	sess := &session.Session{}
	r.attached = sess
	r.Append(wire.Stdout, []byte("one"))
	r.Append(wire.Stderr, []byte("two"))
	r.Append(wire.Stdout, []byte("three"))
	r.ack(sess, wire.Stdout, 100)
	if kept(r) != "onetwothree" {
		t.Error("acknowledged before it was sent:", kept(r))
	}
	r.next = 2 // one and two are sent
	r.ack(sess, wire.Stderr, 3)
	if kept(r) != "onethree" {
		t.Error(kept(r))
	}
	r.ack(sess, wire.Stdout, 100)
	if kept(r) != "three" || r.next != 0 || r.start[wire.Stdout] != 3 || r.start[wire.Stderr] != 3 {
		t.Error(kept(r), r.next, r.start)
	}
}

func TestSmallPiecesJoin(t *testing.T) {
	r := NewRing(func(string) {})
	for i := 0; i < 10000; i++ {
		r.Append(wire.Stdout, []byte("x\n"))
	}
	if len(r.pieces) > 4 || len(kept(r)) != 20000 {
		t.Errorf("%d pieces, %d bytes", len(r.pieces), len(kept(r)))
	}
}
