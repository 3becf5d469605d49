// Package serve answers requests of the runner over standard input and output, one JSON document a line.
package serve

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"releap/host/internal/slot"
)

const (
	lineMaxBytes = 64 * 1024
	// Requests at once; the next one is read when one of them is done.
	concurrency = 16
)

// request has an id, chosen by the runner and repeated in the answer, and exactly one operation.
type request struct {
	ID          uint64       `json:"id"`
	CreateSlot  *slot.Slot   `json:"create_slot,omitempty"`
	DestroySlot *slot.Remove `json:"destroy_slot,omitempty"`
}

type answer struct {
	ID uint64 `json:"id"`
	// Absent when it was done.
	Error string `json:"error,omitempty"`
}

// Serve answers until its input ends: with the runner this process ends too. A line that is no request ends it with an error.
func Serve(input io.Reader, output io.Writer) error {
	lines := bufio.NewScanner(input)
	lines.Buffer(make([]byte, 0, 4096), lineMaxBytes)
	var writing sync.Mutex
	var running sync.WaitGroup
	defer running.Wait()
	free := make(chan struct{}, concurrency)
	for lines.Scan() {
		asked, err := parse(lines.Bytes())
		if err != nil {
			return err
		}
		free <- struct{}{}
		running.Add(1)
		go func() {
			defer running.Done()
			defer func() { <-free }()
			said := answer{ID: asked.ID}
			if err := asked.do(); err != nil {
				said.Error = err.Error()
			}
			line, err := json.Marshal(said)
			if err != nil {
				return
			}
			writing.Lock()
			defer writing.Unlock()
			_, _ = output.Write(append(line, '\n'))
		}()
	}
	return lines.Err()
}

// parse accepts what it knows in full and nothing else.
func parse(line []byte) (*request, error) {
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	var asked request
	if err := decoder.Decode(&asked); err != nil {
		return nil, fmt.Errorf("not a request: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("not a request: something follows it")
	}
	switch {
	case asked.ID == 0:
		return nil, errors.New("not a request: it has no id")
	case (asked.CreateSlot == nil) == (asked.DestroySlot == nil):
		return nil, errors.New("not a request: it has not exactly one operation")
	case asked.CreateSlot != nil:
		return &asked, asked.CreateSlot.Validate()
	default:
		return &asked, asked.DestroySlot.Validate()
	}
}

func (r *request) do() error {
	if r.CreateSlot != nil {
		return r.CreateSlot.Create()
	}
	return r.DestroySlot.Destroy()
}
