package session

import (
	"io"
	"sync"

	"releap/guest/internal/fault"
	"releap/guest/internal/wire"
)

// queueLimit is how much may wait to be written before senders block.
const queueLimit = 128 * 1024

// tryWriter accepts as many bytes as it can without blocking.
type tryWriter interface {
	TryWrite(p []byte) (int, error)
}

// writer gathers frames and hands them to the transport in as few writes as possible: on a virtio port every
// write wakes the host, and that costs more than the bytes do.
type writer struct {
	dst    io.Writer
	mu     sync.Mutex
	change *sync.Cond
	queue  []byte
	spare  []byte
	busy   bool // a write is under way
	closed bool
	ended  chan struct{} // closed when nothing will be written any more
}

// newWriter writes nothing before the writer of the former session, if any, has ended: the rest of its output, perhaps of a
// partial frame, would be read as the new session's.
func newWriter(dst io.Writer, log func(string), before *writer) *writer {
	w := &writer{dst: dst, ended: make(chan struct{}), busy: before != nil}
	w.change = sync.NewCond(&w.mu)
	go func() {
		defer close(w.ended)
		if before != nil {
			<-before.ended
			w.mu.Lock()
			w.busy = false
			w.mu.Unlock()
		}
		w.flush(log)
	}()
	return w
}

func (w *writer) send(kind byte, stream uint32, parts ...[]byte) {
	w.mu.Lock()
	for len(w.queue) > queueLimit && !w.closed {
		w.change.Wait()
	}
	if !w.closed {
		w.queue = wire.Append(w.queue, kind, stream, parts...)
		w.change.Broadcast()
	}
	w.mu.Unlock()
}

// answer is send, but writes immediately and on this goroutine if nothing is queued and the transport accepts it: waking
// another goroutine is the longest part of a short response.
func (w *writer) answer(kind byte, stream uint32, body []byte) {
	direct, can := w.dst.(tryWriter)
	w.mu.Lock()
	if !can || w.busy || w.closed || len(w.queue) > 0 || len(body) > maxChunk {
		w.mu.Unlock()
		w.send(kind, stream, body)
		return
	}
	w.busy = true
	batch := wire.Append(w.spare[:0], kind, stream, body)
	w.spare = nil
	w.mu.Unlock()

	n, err := direct.TryWrite(batch)

	w.mu.Lock()
	w.busy = false
	switch {
	case err != nil:
		w.closed = true
		w.queue = nil
	case n < len(batch) && !w.closed:
		w.queue = append(append(make([]byte, 0, len(batch)-n+len(w.queue)), batch[n:]...), w.queue...)
	default:
		w.spare = batch[:0]
	}
	if len(w.queue) > 0 || w.closed {
		w.change.Broadcast()
	}
	w.mu.Unlock()
}

// hello is only sent first, so it never has to wait.
func (w *writer) hello(payload []byte) {
	w.mu.Lock()
	w.queue = append(w.queue, wire.Magic...)
	w.queue = wire.Append(w.queue, wire.Hello, 0, payload)
	w.change.Broadcast()
	w.mu.Unlock()
}

// close takes no more frames. What is queued is dropped, or written first when flush is set.
func (w *writer) close(flush bool) {
	w.mu.Lock()
	w.closed = true
	if !flush {
		w.queue = nil
	}
	w.change.Broadcast()
	w.mu.Unlock()
}

// idle tells whether everything sent was handed to the transport.
func (w *writer) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.queue) == 0 && !w.busy
}

func (w *writer) flush(log func(string)) {
	defer fault.Guard(log, "writer")
	for {
		w.mu.Lock()
		for w.busy || len(w.queue) == 0 && !w.closed {
			w.change.Wait()
		}
		if len(w.queue) == 0 {
			w.mu.Unlock()
			return
		}
		batch := w.queue
		w.queue = w.spare[:0]
		w.busy = true
		w.mu.Unlock()

		_, err := w.dst.Write(batch)

		w.mu.Lock()
		w.busy = false
		if cap(batch) <= 2*queueLimit {
			w.spare = batch[:0]
		} else {
			w.spare = nil
		}
		if err != nil {
			w.closed = true
			w.queue = nil
		}
		w.change.Broadcast()
		w.mu.Unlock()
	}
}
