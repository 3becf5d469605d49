package jsonlite

import (
	"strconv"
	"unicode/utf8"
)

// Writer builds one JSON object or array piece by piece. The zero Writer is ready.
type Writer struct {
	buf   []byte
	comma bool
}

// Bytes of what was written so far.
func (w *Writer) Bytes() []byte { return w.buf }

// Len of what was written so far.
func (w *Writer) Len() int { return len(w.buf) }

func (w *Writer) sep() {
	if w.comma {
		w.buf = append(w.buf, ',')
	}
	w.comma = true
}

// Open starts an object ('{') or an array ('[') as an item of an array or as the whole value.
func (w *Writer) Open(c byte) *Writer {
	w.sep()
	w.buf = append(w.buf, c)
	w.comma = false
	return w
}

// Close ends what Open or Key+Open started, with '}' or ']'.
func (w *Writer) Close(c byte) *Writer {
	w.buf = append(w.buf, c)
	w.comma = true
	return w
}

// Key writes a name of an object; a value must follow.
func (w *Writer) Key(name string) *Writer {
	w.sep()
	w.buf = appendString(w.buf, name)
	w.buf = append(w.buf, ':')
	w.comma = false
	return w
}

// Text writes a string value. Bytes that are not UTF-8 become U+FFFD.
func (w *Writer) Text(s string) *Writer {
	w.sep()
	w.buf = appendString(w.buf, s)
	return w
}

// Int writes a number.
func (w *Writer) Int(n int64) *Writer {
	w.sep()
	w.buf = strconv.AppendInt(w.buf, n, 10)
	return w
}

// Flag writes a boolean.
func (w *Writer) Flag(b bool) *Writer {
	w.sep()
	w.buf = strconv.AppendBool(w.buf, b)
	return w
}

// Null writes null.
func (w *Writer) Null() *Writer {
	w.sep()
	w.buf = append(w.buf, "null"...)
	return w
}

// Raw writes a value that is JSON already.
func (w *Writer) Raw(json []byte) *Writer {
	w.sep()
	w.buf = append(w.buf, json...)
	return w
}

const hexDigits = "0123456789abcdef"

func appendString(buf []byte, s string) []byte {
	buf = append(buf, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			switch {
			case c == '"' || c == '\\':
				buf = append(buf, '\\', c)
			case c < 0x20 || c == 0x7f:
				buf = append(buf, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			default:
				buf = append(buf, c)
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 {
			buf = append(buf, "\ufffd"...)
		} else {
			buf = append(buf, s[i:i+size]...)
		}
		i += size
	}
	return append(buf, '"')
}
