// Package wire is the frame codec of the host protocol (docs/guest-protocol.md).
//
// A frame is: u32 payload length | u8 type | u32 stream id | payload, big endian. A connection starts, in both
// directions, with Magic and a HELLO frame; whatever came before it is left over from an earlier connection.
package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"strconv"
)

// Frame types.
const (
	Open   byte = 1
	Data   byte = 2
	Window byte = 3
	End    byte = 4
	Result byte = 5
	Error  byte = 6
	Cancel byte = 7
	Ping   byte = 8
	Pong   byte = 9
	Hello  byte = 10
	Part   byte = 11 // a piece of the JSON of the next OPEN, RESULT of the same stream
	Event  byte = 12 // guest to host, on stream 0
)

// Channels of a stream.
const (
	Stdin  byte = 0
	Stdout byte = 1
	Stderr byte = 2
)

// Protocol is the version this agent speaks; a host that speaks another is refused at HELLO.
const Protocol = 1

// HeaderSize, MaxPayload and InitialWindow are constants of protocol 1.
const (
	HeaderSize    = 9
	MaxPayload    = 65536
	InitialWindow = 262144
	// MaxHello bounds a HELLO, which is read before anything is known of the peer.
	MaxHello = 4096
	// MaxMessage bounds one JSON message however many PART frames it came in.
	MaxMessage = 4 << 20
)

// Magic comes before every HELLO. Its first byte does not occur in it again, so a scan needs no backtracking.
const Magic = "\xf5releap-guest\x00\x01\xae"

// Frame as read; Payload is valid until the next Read.
type Frame struct {
	Type    byte
	Stream  uint32
	Payload []byte
}

// Reader decodes frames from a byte stream.
type Reader struct {
	src *bufio.Reader
	buf []byte
}

// ErrHello is what Read gives when it meets a Magic where a frame should start: a HELLO follows, the peer
// starts again.
var ErrHello = errors.New("the peer begins a new session")

// ErrFrame is wrapped by every error that means the peer broke the protocol.
var ErrFrame = errors.New("protocol violation")

type violation string

func (v violation) Error() string { return "protocol violation: " + string(v) }
func (v violation) Unwrap() error { return ErrFrame }

// Violation makes an error that wraps ErrFrame.
func Violation(text string) error { return violation(text) }

// NewReader wraps a byte stream.
func NewReader(src io.Reader) *Reader {
	return &Reader{src: bufio.NewReaderSize(src, 32*1024)}
}

// Sync discards bytes until just behind a Magic.
func (r *Reader) Sync() error {
	matched := 0
	for matched < len(Magic) {
		b, err := r.src.ReadByte()
		if err != nil {
			return err
		}
		switch {
		case b == Magic[matched]:
			matched++
		case b == Magic[0]:
			matched = 1
		default:
			matched = 0
		}
	}
	return nil
}

// Read decodes the next frame, whose payload must not be longer than limit.
func (r *Reader) Read(limit int) (Frame, error) {
	var head [HeaderSize]byte
	if _, err := io.ReadFull(r.src, head[:]); err != nil {
		return Frame{}, err
	}
	if string(head[:]) == Magic[:HeaderSize] {
		var tail [len(Magic) - HeaderSize]byte
		if _, err := io.ReadFull(r.src, tail[:]); err != nil {
			return Frame{}, err
		}
		if string(tail[:]) == Magic[HeaderSize:] {
			return Frame{}, ErrHello
		}
	}
	size := binary.BigEndian.Uint32(head[:4])
	if size > uint32(limit) {
		return Frame{}, Violation("payload of " + strconv.FormatUint(uint64(size), 10) + " bytes, at most " + strconv.Itoa(limit) + " are allowed")
	}
	f := Frame{Type: head[4], Stream: binary.BigEndian.Uint32(head[5:])}
	if f.Type < Open || f.Type > Event {
		return Frame{}, Violation("unknown frame type " + strconv.Itoa(int(f.Type)))
	}
	if cap(r.buf) < int(size) {
		r.buf = make([]byte, size, max(int(size), 4096))
	}
	f.Payload = r.buf[:size]
	_, err := io.ReadFull(r.src, f.Payload)
	return f, err
}

// Buffered tells how many bytes wait behind the last frame.
func (r *Reader) Buffered() int { return r.src.Buffered() }

func max(a, b int) int {
	if a > b {
		return a
	}
	return b
}

// Append encodes a frame whose payload is the concatenation of the parts.
func Append(dst []byte, kind byte, stream uint32, parts ...[]byte) []byte {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	var head [HeaderSize]byte
	binary.BigEndian.PutUint32(head[:4], uint32(size))
	head[4] = kind
	binary.BigEndian.PutUint32(head[5:], stream)
	dst = append(dst, head[:]...)
	for _, p := range parts {
		dst = append(dst, p...)
	}
	return dst
}
