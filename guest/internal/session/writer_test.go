package session

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"releap/guest/internal/wire"
)

// moody takes what it is in the mood for, as a device whose host reads slowly does.
type moody struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	turn int
}

func (m *moody) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.buf.Write(p)
}

func (m *moody) TryWrite(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn++
	n := m.turn % (len(p) + 1)
	m.buf.Write(p[:n])
	return n, nil
}

func TestAnswersAndOtherFramesStayWholeAndInOrder(t *testing.T) {
	dst := &moody{}
	w := newWriter(dst, func(string) {}, nil)
	var senders sync.WaitGroup
	for sender := uint32(0); sender < 4; sender++ {
		sender := sender
		senders.Add(1)
		go func() {
			defer senders.Done()
			for i := uint32(0); i < 500; i++ {
				var body [4]byte
				binary.BigEndian.PutUint32(body[:], i)
				if i%3 == 0 {
					w.send(wire.Event, sender, body[:])
				} else {
					w.answer(wire.Result, sender, body[:])
				}
			}
		}()
	}
	senders.Wait()
	for end := time.Now().Add(60 * time.Second); !w.idle() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	w.close(false)
	dst.mu.Lock()
	defer dst.mu.Unlock()
	next := [4]uint32{}
	for r := wire.NewReader(&dst.buf); ; {
		f, err := r.Read(wire.MaxPayload)
		if err != nil {
			break
		}
		if got := binary.BigEndian.Uint32(f.Payload); got != next[f.Stream] {
			t.Fatalf("sender %d: frame %d instead of %d", f.Stream, got, next[f.Stream])
		}
		next[f.Stream]++
	}
	if next != [4]uint32{500, 500, 500, 500} {
		t.Fatalf("frames were lost: %v", next)
	}
}
