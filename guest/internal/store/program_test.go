package store

import (
	"io"
	"os"
	"strings"
	"testing"

	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
	"releap/guest/internal/process"
)

// The reaper of a table waits for every child of this process, so there is one.
var table = process.NewTable(nil, func(text string) { os.Stderr.WriteString(text + "\n") })

// Programs in the place of storemount, which mount nothing and end when they are asked to unmount.
const (
	first  = "#!/bin/sh\nread config\ntrap 'exit 0' USR1\necho mounted\nwhile :; do sleep 0.01; done\n"
	second = first + "# another version\n"
)

// input of a request that carries a program, in pieces.
type input struct {
	left     string
	received int
	failure  error
}

func (i *input) Receive(<-chan struct{}) ([]byte, error) {
	if i.left == "" {
		if i.failure != nil {
			return nil, i.failure
		}
		return nil, io.EOF
	}
	piece := i.left
	if len(piece) > 10 {
		piece = piece[:10]
	}
	i.left = i.left[len(piece):]
	return []byte(piece), nil
}

func (i *input) Consumed(n int) { i.received += n }

func offerOf(digest, program string) *Offer {
	return &Offer{digest: digest, bytes: int64(len(program))}
}

func at(path string) Spec { return Spec{Path: path, json: []byte(`{"path":"` + path + `"}`)} }

func newMounts() *Mounts { return New(table, func(string) {}) }

func TestTheProgramIsReceivedWithTheFirstMountsAndFreedWithTheLast(t *testing.T) {
	m := newMounts()
	in := &input{left: first}
	if err := m.Mount(offerOf("1", first), in, at("/a"), at("/b")); err != nil {
		t.Fatal(err)
	}
	if in.received != len(first) {
		t.Errorf("%d bytes were received", in.received)
	}
	again := &input{left: first}
	if err := m.Mount(offerOf("1", first), again, at("/c")); err != nil {
		t.Fatal(err)
	}
	if again.received != 0 {
		t.Error("a program that is there was received again")
	}
	// A host that has no program to offer.
	if err := m.Mount(nil, &input{}, at("/d")); err != nil {
		t.Fatal(err)
	}
	other := at("/a")
	other.json = []byte(`{"path":"/a","bucket":"other"}`)
	if !m.Has(at("/a")) || m.Has(other) || m.Has(at("/e")) {
		t.Error("the wrong mounts are said to be there")
	}
	for _, path := range []string{"/a", "/b", "/c", "/d"} {
		if m.program == nil {
			t.Fatalf("the program was freed before %s was unmounted", path)
		}
		if err := m.Unmount(path); err != nil {
			t.Fatal(err)
		}
	}
	if m.program != nil {
		t.Error("nothing is mounted, and the program is still in memory")
	}
}

func TestAnotherVersionServesLaterMounts(t *testing.T) {
	m := newMounts()
	if err := m.Mount(offerOf("1", first), &input{left: first}, at("/a")); err != nil {
		t.Fatal(err)
	}
	old := m.program
	if err := m.Mount(offerOf("2", second), &input{left: second}, at("/b")); err != nil {
		t.Fatal(err)
	}
	if m.program.digest != "2" {
		t.Errorf("version %s serves", m.program.digest)
	}
	if _, err := old.file.Stat(); err == nil {
		t.Error("the former version is still open")
	}
	for _, path := range []string{"/a", "/b"} { // the first one is served by the former version
		if err := m.Unmount(path); err != nil {
			t.Error(err)
		}
	}
}

func TestAProgramThatDoesNotArriveMountsNothing(t *testing.T) {
	lost := fault.New(fault.Cancelled, "the connection is lost")
	for want, in := range map[string]*input{
		"has 10 bytes, announced were": {left: first[:10]},
		"announced were":               {left: first + "more"},
		"the connection is lost":       {left: first[:10], failure: lost},
	} {
		m := newMounts()
		err := m.Mount(offerOf("1", first), in, at("/a"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v instead of: %s", err, want)
		}
		if m.program != nil || len(m.paths) != 0 {
			t.Error("something is left of it")
		}
	}
	if err := newMounts().Mount(nil, &input{}, at("/a")); fault.Code(err) != fault.State {
		t.Error(err)
	}
	if err := newMounts().Mount(nil, nil); err != nil {
		t.Error(err)
	}
}

func TestAProgramThatFailsIsFreed(t *testing.T) {
	m := newMounts()
	failing := "#!/bin/sh\necho 'error: no such bucket'\n"
	err := m.Mount(offerOf("1", failing), &input{left: failing}, at("/a"))
	if err == nil || !strings.Contains(err.Error(), "no such bucket") {
		t.Error(err)
	}
	if m.program != nil {
		t.Error("the program is still in memory")
	}
}

func TestAnOfferIsRead(t *testing.T) {
	parse := func(text string) (*Offer, error) {
		v, err := jsonlite.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return ParseOffer(v.Get("store_program"))
	}
	if offer, err := parse(`{}`); offer != nil || err != nil {
		t.Error(offer, err)
	}
	if offer, err := parse(`{"store_program":{"digest":"1","bytes":5}}`); err != nil || *offer != (Offer{"1", 5}) {
		t.Error(offer, err)
	}
	for _, text := range []string{`{"digest":1,"bytes":5}`, `{"digest":"1","bytes":1e12}`} {
		if _, err := parse(`{"store_program":` + text + `}`); err == nil {
			t.Error(text)
		}
	}
}
