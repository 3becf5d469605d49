package entrypoint

import (
	"sync"

	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
	"releap/guest/internal/session"
	"releap/guest/internal/wire"
)

// ringLimit bounds the output kept for the host, bookkeeping of small pieces included.
const ringLimit = 256 * 1024

// pieceCost is what one piece counts beyond its bytes.
const pieceCost = 64

// mergeLimit is how large pieces grow by joining small ones that wait.
const mergeLimit = 16 * 1024

// Ring keeps output until the host has acknowledged it (by WINDOW), and sends what was not again on the next
// connection. Full, it makes the writer wait while a host is there, and drops the oldest while there is none.
type Ring struct {
	mu     sync.Mutex
	change *sync.Cond
	pieces []piece
	size   int
	// next piece to send, and how much of it was sent already.
	next, sent int
	// start is, by channel, how many bytes came before those kept.
	start    [3]int64
	attached *session.Session
	log      func(string)
}

type piece struct {
	channel byte
	data    []byte
	acked   int
}

// NewRing makes an empty ring.
func NewRing(log func(string)) *Ring {
	r := &Ring{log: log}
	r.change = sync.NewCond(&r.mu)
	return r
}

// Append output. The bytes are copied.
func (r *Ring) Append(channel byte, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last := len(r.pieces) - 1; last > r.next && r.pieces[last].channel == channel &&
		len(r.pieces[last].data)+len(data) <= mergeLimit && r.size+len(data) <= ringLimit {
		r.pieces[last].data = append(r.pieces[last].data, data...)
		r.size += len(data)
		return
	}
	cost := len(data) + pieceCost
	for r.size+cost > ringLimit && len(r.pieces) > 0 {
		if r.attached != nil {
			r.change.Wait()
			continue
		}
		oldest := r.pieces[0]
		r.start[oldest.channel] += int64(len(oldest.data) - oldest.acked)
		r.pop()
	}
	r.pieces = append(r.pieces, piece{channel: channel, data: append([]byte(nil), data...)})
	r.size += cost
	r.change.Broadcast()
}

func (r *Ring) pop() {
	r.size -= len(r.pieces[0].data) + pieceCost
	r.pieces[0].data = nil
	r.pieces = r.pieces[1:]
	if r.next > 0 {
		r.next--
	} else {
		r.sent = 0
	}
}

// ack frees n bytes that the host has dealt with.
func (r *Ring) ack(sess *session.Session, channel byte, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.attached != sess {
		return
	}
	for i := range r.pieces {
		p := &r.pieces[i]
		sent := len(p.data)
		if i > r.next {
			break
		} else if i == r.next {
			sent = r.sent
		}
		if p.channel != channel || n == 0 {
			continue
		}
		step := sent - p.acked
		if step > n {
			step = n
		}
		if step > 0 {
			p.acked += step
			r.start[channel] += int64(step)
			n -= step
		}
	}
	for len(r.pieces) > 0 && r.next > 0 && r.pieces[0].acked == len(r.pieces[0].data) {
		r.pop()
	}
	r.change.Broadcast()
}

// Attach starts to send to a new session.
func (r *Ring) Attach(sess *session.Session) {
	r.mu.Lock()
	r.attached = sess
	r.next, r.sent = 0, 0
	out, err := r.start[wire.Stdout], r.start[wire.Stderr]
	r.change.Broadcast()
	r.mu.Unlock()
	stream := sess.Open("entrypoint", func(w *jsonlite.Writer) {
		w.Key("stdout_offset").Int(out).Key("stderr_offset").Int(err)
	}, func(channel byte, n uint32) { r.ack(sess, channel, int(n)) })
	if stream != nil {
		go r.send(sess, stream)
	}
}

// Detach when the session is gone.
func (r *Ring) Detach(sess *session.Session) {
	r.mu.Lock()
	if r.attached == sess {
		r.attached = nil
		r.change.Broadcast()
	}
	r.mu.Unlock()
}

func (r *Ring) send(sess *session.Session, stream *session.Stream) {
	defer fault.Guard(r.log, "entrypoint output")
	for {
		r.mu.Lock()
		for r.attached == sess && r.next == len(r.pieces) {
			r.change.Wait()
		}
		if r.attached != sess {
			r.mu.Unlock()
			return
		}
		p := r.pieces[r.next]
		r.mu.Unlock()

		credit := stream.Credit(p.channel, nil)
		if credit == 0 {
			return
		}

		r.mu.Lock()
		if r.attached != sess { // pieces may have been dropped meanwhile
			r.mu.Unlock()
			return
		}
		from := r.sent
		if from < r.pieces[r.next].acked { // acknowledged on an earlier connection, behind one that was not
			from = r.pieces[r.next].acked
		}
		rest := p.data[from:]
		if len(rest) > credit {
			rest = rest[:credit]
			r.sent = from + len(rest)
		} else {
			r.next, r.sent = r.next+1, 0
		}
		r.mu.Unlock()
		if len(rest) > 0 {
			stream.Put(p.channel, rest)
		}
	}
}
