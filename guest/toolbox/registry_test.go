package main

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
)

func TestARegistryIsBoundedAndNamesNothingTwice(t *testing.T) {
	type entry struct{ id string }
	r := newRegistry[*entry]("thing", 3)
	add := func(id string) (*entry, int) {
		one, err := r.add(id, func() (*entry, error) { return &entry{id}, nil })
		if err == nil {
			return one, http.StatusOK
		}
		status, _ := statusOf(err)
		return one, status
	}
	// One that fails leaves its id and its place.
	for i := 0; i < 4; i++ {
		if _, err := r.add("a", func() (*entry, error) { return nil, errors.New("no") }); err == nil || err.Error() != "no" {
			t.Fatal(err)
		}
	}
	// While one is made it cannot be found, but its id and its place are taken.
	first, _ := r.add("a", func() (*entry, error) {
		if _, err := r.find("a"); err == nil {
			t.Error("found before it exists")
		}
		if _, status := add("a"); status != http.StatusConflict {
			t.Error(status)
		}
		add("b")
		add("c")
		if _, status := add("d"); status != http.StatusTooManyRequests {
			t.Error(status)
		}
		return &entry{"a"}, nil
	})
	ids := func() (text string) {
		for _, one := range r.all() {
			text += one.id
		}
		return text
	}
	if ids() != "bca" {
		t.Fatal(ids())
	}
	r.remove("b", first) // another one
	r.remove("c", r.byID["c"])
	if _, status := add("d"); status != http.StatusOK || ids() != "bad" {
		t.Fatal(status, ids())
	}
	// Some give way: one of the same id, and any when it is full.
	r.giveWay = func(one *entry) bool { return one.id < "c" }
	if _, status := add("d"); status != http.StatusConflict {
		t.Fatal(status)
	}
	if one, status := add("a"); status != http.StatusOK || one == first {
		t.Fatal(status)
	}
	for i := 0; i < 3; i++ {
		if _, status := add(fmt.Sprint("e", i)); status != http.StatusOK && i < 2 {
			t.Fatal(i, status)
		}
	}
	if len(r.all()) != 3 || len(r.reserved) != 0 {
		t.Fatal(ids(), r.reserved)
	}
}
