package agent

import (
	"releap/guest/internal/jsonlite"
	"releap/guest/internal/session"
	"releap/guest/internal/store"
)

func (a *Agent) mountStore(s *session.Stream, v jsonlite.Value) error {
	if err := a.thawed(); err != nil {
		return err
	}
	spec, err := store.Parse(v)
	if err != nil {
		return err
	}
	offer, err := store.ParseOffer(v.Get("store_program"))
	if err != nil {
		return err
	}
	existed := a.stores.Has(spec)
	if err := a.stores.Mount(offer, s, spec); err != nil {
		return err
	}
	w := &jsonlite.Writer{}
	s.Result(w.Open('{').Key("existed").Flag(existed).Close('}'))
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
