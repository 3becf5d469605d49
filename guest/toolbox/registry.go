package main

import (
	"net/http"
	"sync"
)

// registry has what lasts from one request to the next (sessions, terminals, interpreters) by id, up to a maximum.
type registry[T comparable] struct {
	what string // for errors
	max  int
	// giveWay, where it is set, says whether an entry may be dropped for a new one, and releases what it holds.
	giveWay func(T) bool

	mu       sync.Mutex
	byID     map[string]T
	order    []string // of creation
	reserved map[string]bool
}

func newRegistry[T comparable](what string, max int) *registry[T] {
	return &registry[T]{what: what, max: max, byID: map[string]T{}, reserved: map[string]bool{}}
}

// add what make creates. No lock is held meanwhile: a folder of the sandbox may not answer.
func (r *registry[T]) add(id string, make func() (T, error)) (one T, err error) {
	if err := r.reserve(id); err != nil {
		return one, err
	}
	made := false
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.reserved, id)
		if made {
			r.byID[id] = one
			r.order = append(r.order, id)
		}
	}()
	one, err = make()
	made = err == nil
	return one, err
}

func (r *registry[T]) reserve(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.giveWay != nil {
		for old, one := range r.byID {
			if (old == id || r.isFull()) && r.giveWay(one) {
				r.drop(old)
			}
		}
	}
	if _, exists := r.byID[id]; exists || r.reserved[id] {
		return fail(http.StatusConflict, "%s %q exists already", r.what, id)
	}
	if r.isFull() {
		return fail(http.StatusTooManyRequests, "there are %d of %s, which is the most: delete one", r.max, r.what)
	}
	r.reserved[id] = true
	return nil
}

func (r *registry[T]) isFull() bool { return len(r.byID)+len(r.reserved) >= r.max }

func (r *registry[T]) find(id string) (T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one, ok := r.byID[id]
	if !ok {
		return one, fail(http.StatusNotFound, "%s %q not found", r.what, id)
	}
	return one, nil
}

// remove an entry, unless another one has its id by now.
func (r *registry[T]) remove(id string, one T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID[id] == one {
		r.drop(id)
	}
}

func (r *registry[T]) drop(id string) {
	delete(r.byID, id)
	for i, other := range r.order {
		if other == id {
			r.order = append(r.order[:i], r.order[i+1:]...)
			return
		}
	}
}

// all entries, oldest first.
func (r *registry[T]) all() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]T, 0, len(r.order))
	for _, id := range r.order {
		list = append(list, r.byID[id])
	}
	return list
}

// with handles requests to the entry that the path names.
func (r *registry[T]) with(handle func(*call, T) error) handler {
	return func(c *call) error {
		one, err := r.find(c.params[0])
		if err != nil {
			return err
		}
		return handle(c, one)
	}
}
