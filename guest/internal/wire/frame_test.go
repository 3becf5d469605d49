package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func TestFramesComeOutAsTheyWentIn(t *testing.T) {
	var buf []byte
	buf = append(buf, "left over \xf5releap-gu"...)
	buf = append(buf, Magic...)
	buf = Append(buf, Hello, 0, []byte("{}"))
	buf = Append(buf, Data, 7, []byte{1}, bytes.Repeat([]byte("x"), MaxPayload-1))
	buf = append(buf, Magic...)
	buf = Append(buf, Hello, 0, nil)
	r := NewReader(bytes.NewReader(buf))
	if err := r.Sync(); err != nil {
		t.Fatal(err)
	}
	if f, err := r.Read(MaxHello); err != nil || f.Type != Hello || string(f.Payload) != "{}" {
		t.Fatal(f, err)
	}
	if f, err := r.Read(MaxPayload); err != nil || f.Stream != 7 || len(f.Payload) != MaxPayload {
		t.Fatal(err)
	}
	if _, err := r.Read(MaxPayload); err != ErrHello {
		t.Fatal("a new session was not noticed:", err)
	}
	if f, err := r.Read(MaxHello); err != nil || f.Type != Hello {
		t.Fatal(f, err)
	}
	if _, err := r.Read(MaxPayload); err != io.EOF {
		t.Fatal(err)
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(Magic), 10)
	f.Add(Append(nil, Open, 1, []byte(`{"method":"exec"}`)), 65536)
	f.Add(Append(nil, Window, 3, []byte{1, 0, 0, 1, 0}), 5)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0}, 65536)
	f.Add(make([]byte, 40), 65536)
	f.Fuzz(func(t *testing.T, data []byte, limit int) {
		if limit < 0 || limit > MaxPayload {
			return
		}
		r := NewReader(bytes.NewReader(data))
		for {
			frame, err := r.Read(limit)
			if errors.Is(err, ErrFrame) || err == io.EOF || err == io.ErrUnexpectedEOF {
				return
			}
			if err != nil && err != ErrHello {
				t.Fatal(err)
			}
			if len(frame.Payload) > limit {
				t.Fatal("payload over the limit")
			}
		}
	})
}
