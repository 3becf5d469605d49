package main

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Streams of an output.
const (
	stdout byte = 1
	stderr byte = 2
)

const (
	// outputMax is what is kept of the output of one command or terminal.
	outputMax = 8 << 20
	// outputsLeast bounds what is kept of all; a sandbox with more memory keeps an eighth of it, at most outputsMost.
	outputsLeast = 16 << 20
	outputsMost  = 256 << 20
	// stallPatience is how long a reader may not read before it is dropped.
	stallPatience = 30 * time.Second
)

var (
	outputsLimit = outputsLimitOf("/proc/meminfo")
	outputsKept  int64
)

func outputsLimitOf(file string) int64 {
	text, _ := os.ReadFile(file)
	for _, line := range strings.Split(string(text), "\n") {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "MemTotal:" {
			kib, _ := strconv.ParseInt(fields[1], 10, 64)
			switch share := kib * 1024 / 8; {
			case share > outputsMost:
				return outputsMost
			case share > outputsLeast:
				return share
			}
		}
	}
	return outputsLeast
}

type chunk struct {
	stream byte
	data   []byte
}

// output keeps the newest bytes that a command or terminal wrote, in order, and lets readers follow it.
type output struct {
	limit int

	mu      sync.Mutex
	chunks  []chunk
	first   int64 // number of chunks[0]
	size    int
	dropped bool // something was, from the beginning
	ended   bool
	changed chan struct{} // closed at each change
	readers map[*reader]struct{}
}

func newOutput(limit int) *output {
	return &output{limit: limit, changed: make(chan struct{}), readers: map[*reader]struct{}{}}
}

// notify wakes all who wait. Called under the lock.
func (o *output) notify() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// append takes bytes that become the output's. When it is full, the oldest are dropped, also for readers that have not read them.
func (o *output) append(stream byte, data []byte) {
	if len(data) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	if last := len(o.chunks) - 1; last >= 0 && o.chunks[last].stream == stream && len(o.chunks[last].data)+len(data) <= 4096 && !o.beingRead(o.first+int64(last)) {
		o.chunks[last].data = append(o.chunks[last].data, data...)
	} else {
		o.chunks = append(o.chunks, chunk{stream, data})
	}
	o.size += len(data)
	atomic.AddInt64(&outputsKept, int64(len(data)))
	for len(o.chunks) > 1 && (o.size > o.limit || atomic.LoadInt64(&outputsKept) > outputsLimit) {
		o.drop()
	}
	o.notify()
}

// beingRead tells whether a reader has had the chunk of that number.
func (o *output) beingRead(number int64) bool {
	for r := range o.readers {
		if r.next > number {
			return true
		}
	}
	return false
}

func (o *output) drop() {
	size := len(o.chunks[0].data)
	o.chunks = o.chunks[1:]
	o.first++
	o.size -= size
	o.dropped = true
	atomic.AddInt64(&outputsKept, -int64(size))
}

// end says that nothing follows.
func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended {
		o.ended = true
		o.notify()
	}
}

// forget what is kept: its command is deleted.
func (o *output) forget() {
	o.end()
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.chunks) > 0 {
		o.drop()
	}
}

// text of one stream, or of all for 0, as UTF-8.
func (o *output) text(stream byte) string { return strings.ToValidUTF8(o.raw(stream), "\uFFFD") }

// raw are the bytes of one stream, or of all for 0.
func (o *output) raw(stream byte) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var b strings.Builder
	for _, c := range o.chunks {
		if stream == 0 || c.stream == stream {
			b.Write(c.data)
		}
	}
	return b.String()
}

// reader follows an output.
type reader struct {
	output *output
	next   int64 // number of the chunk that it reads next
	lost   bool  // it read too slowly and was dropped
}

// read from the oldest byte that is kept.
func (o *output) read() *reader {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := &reader{output: o, next: o.first}
	o.readers[r] = struct{}{}
	return r
}

func (r *reader) close() {
	r.output.mu.Lock()
	defer r.output.mu.Unlock()
	delete(r.output.readers, r)
	r.output.notify()
}

// take waits for chunks. None with ok: stop closed, or, without ok, nothing follows.
func (r *reader) take(stop <-chan struct{}) (chunks []chunk, ok bool) {
	o := r.output
	for {
		o.mu.Lock()
		if r.next < o.first {
			r.next = o.first
		}
		if at := int(r.next - o.first); at < len(o.chunks) && !r.lost {
			chunks = append(chunks, o.chunks[at:]...)
			r.next = o.first + int64(len(o.chunks))
			o.notify() // a terminal may wait for its readers
			o.mu.Unlock()
			return chunks, true
		}
		ended, changed := o.ended || r.lost, o.changed
		o.mu.Unlock()
		if ended {
			return nil, false
		}
		select {
		case <-changed:
		case <-stop:
			return nil, true
		}
	}
}

// wasLost tells whether the reader was dropped because it did not read.
func (r *reader) wasLost() bool {
	r.output.mu.Lock()
	defer r.output.mu.Unlock()
	return r.lost
}

// awaitReaders waits until every reader has had all, as a terminal waits for its screen. One that does not read for long is
// dropped. Without readers it returns at once: the newest output is kept for the next one.
func (o *output) awaitReaders() {
	deadline := time.NewTimer(stallPatience)
	defer deadline.Stop()
	for {
		o.mu.Lock()
		behind := false
		for r := range o.readers {
			behind = behind || (!r.lost && r.next < o.first+int64(len(o.chunks)))
		}
		behind = behind && !o.ended
		changed := o.changed
		o.mu.Unlock()
		if !behind {
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			o.mu.Lock()
			for r := range o.readers {
				r.lost = r.lost || r.next < o.first+int64(len(o.chunks))
			}
			o.notify()
			o.mu.Unlock()
			return
		}
	}
}
