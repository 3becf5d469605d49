package agent

import (
	"releap/guest/internal/jsonlite"
	"releap/guest/internal/session"
	"releap/guest/internal/store"
)

// mountStores at once: each takes a moment, and none asks its server.
func (a *Agent) mountStores(specs []store.Spec) error {
	done := make(chan error, len(specs))
	for _, spec := range specs {
		go func(spec store.Spec) { done <- a.stores.Mount(spec) }(spec)
	}
	var first error
	for range specs {
		if err := <-done; err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (a *Agent) mountStore(s *session.Stream, v jsonlite.Value) error {
	if err := a.thawed(); err != nil {
		return err
	}
	spec, err := store.Parse(v)
	if err != nil {
		return err
	}
	if err := a.stores.Mount(spec); err != nil {
		return err
	}
	s.Result(empty())
	return nil
}

func (a *Agent) unmountStore(s *session.Stream, v jsonlite.Value) error {
	if err := a.thawed(); err != nil {
		return err
	}
	path, err := v.Get("path").Text("path")
	if err != nil {
		return err
	}
	if err := a.stores.Unmount(path); err != nil {
		return err
	}
	s.Result(empty())
	return nil
}
