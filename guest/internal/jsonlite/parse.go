// Package jsonlite reads and writes the little JSON the host protocol needs.
//
// Why not encoding/json: this code is the first thing to run after a restored template wakes, on a machine
// that may translate every instruction again. A parser without reflection is a tenth of the code to translate.
// It is strict (RFC 8259), bounds nesting, and rejects duplicate keys.
package jsonlite

import (
	"errors"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

const maxDepth = 16

// Kind of a Value.
type Kind uint8

// The kinds of JSON values; Missing is the zero Value, what a lookup of an absent key gives.
const (
	Missing Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

// Value is one parsed JSON value.
type Value struct {
	kind  Kind
	flag  bool
	text  string // string, or a number as it was written
	items []Value
	keys  []string // of an object, beside items
}

type parser struct {
	data []byte
	at   int
}

// Parse reads exactly one value.
func Parse(data []byte) (Value, error) {
	p := parser{data: data}
	v, err := p.value(0)
	if err != nil {
		return Value{}, err
	}
	p.space()
	if p.at != len(data) {
		return Value{}, p.fail("text after the value")
	}
	return v, nil
}

func (p *parser) fail(what string) error {
	return errors.New("bad JSON at byte " + strconv.Itoa(p.at) + ": " + what)
}

func (p *parser) space() {
	for p.at < len(p.data) {
		switch p.data[p.at] {
		case ' ', '\t', '\r', '\n':
			p.at++
		default:
			return
		}
	}
}

func (p *parser) value(depth int) (Value, error) {
	if depth > maxDepth {
		return Value{}, p.fail("nested too deeply")
	}
	p.space()
	if p.at >= len(p.data) {
		return Value{}, p.fail("ends early")
	}
	switch c := p.data[p.at]; {
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case c == '"':
		s, err := p.str()
		return Value{kind: String, text: s}, err
	case c == 't':
		return Value{kind: Bool, flag: true}, p.word("true")
	case c == 'f':
		return Value{kind: Bool}, p.word("false")
	case c == 'n':
		return Value{kind: Null}, p.word("null")
	case c == '-' || (c >= '0' && c <= '9'):
		return p.number()
	}
	return Value{}, p.fail("unexpected character")
}

func (p *parser) word(w string) error {
	if len(p.data)-p.at < len(w) || string(p.data[p.at:p.at+len(w)]) != w {
		return p.fail("expected " + w)
	}
	p.at += len(w)
	return nil
}

func (p *parser) digits() bool {
	start := p.at
	for p.at < len(p.data) && p.data[p.at] >= '0' && p.data[p.at] <= '9' {
		p.at++
	}
	return p.at > start
}

func (p *parser) peek(c byte) bool { return p.at < len(p.data) && p.data[p.at] == c }

func (p *parser) number() (Value, error) {
	start := p.at
	if p.peek('-') {
		p.at++
	}
	if p.peek('0') {
		p.at++
	} else if !p.digits() {
		return Value{}, p.fail("bad number")
	}
	if p.peek('.') {
		p.at++
		if !p.digits() {
			return Value{}, p.fail("bad number")
		}
	}
	if p.peek('e') || p.peek('E') {
		p.at++
		if p.peek('+') || p.peek('-') {
			p.at++
		}
		if !p.digits() {
			return Value{}, p.fail("bad number")
		}
	}
	return Value{kind: Number, text: string(p.data[start:p.at])}, nil
}

func (p *parser) array(depth int) (Value, error) {
	v := Value{kind: Array}
	p.at++
	p.space()
	if p.peek(']') {
		p.at++
		return v, nil
	}
	for {
		item, err := p.value(depth + 1)
		if err != nil {
			return Value{}, err
		}
		v.items = append(v.items, item)
		p.space()
		if p.peek(']') {
			p.at++
			return v, nil
		}
		if !p.peek(',') {
			return Value{}, p.fail("expected , or ]")
		}
		p.at++
	}
}

func (p *parser) object(depth int) (Value, error) {
	v := Value{kind: Object}
	p.at++
	p.space()
	if p.peek('}') {
		p.at++
		return v, nil
	}
	seen := map[string]struct{}{}
	for {
		p.space()
		if !p.peek('"') {
			return Value{}, p.fail("expected a key")
		}
		key, err := p.str()
		if err != nil {
			return Value{}, err
		}
		if _, twice := seen[key]; twice {
			return Value{}, p.fail("key given twice")
		}
		seen[key] = struct{}{}
		p.space()
		if !p.peek(':') {
			return Value{}, p.fail("expected :")
		}
		p.at++
		item, err := p.value(depth + 1)
		if err != nil {
			return Value{}, err
		}
		v.keys = append(v.keys, key)
		v.items = append(v.items, item)
		p.space()
		if p.peek('}') {
			p.at++
			return v, nil
		}
		if !p.peek(',') {
			return Value{}, p.fail("expected , or }")
		}
		p.at++
	}
}

func (p *parser) str() (string, error) {
	p.at++
	start := p.at
	for p.at < len(p.data) { // the usual string has no escape and is copied once
		c := p.data[p.at]
		if c == '"' {
			s := p.data[start:p.at]
			if !utf8.Valid(s) {
				return "", p.fail("string is not UTF-8")
			}
			p.at++
			return string(s), nil
		}
		if c == '\\' || c < 0x20 {
			break
		}
		p.at++
	}
	out := append([]byte(nil), p.data[start:p.at]...)
	for p.at < len(p.data) {
		c := p.data[p.at]
		p.at++
		switch {
		case c == '"':
			if !utf8.Valid(out) {
				return "", p.fail("string is not UTF-8")
			}
			return string(out), nil
		case c < 0x20:
			return "", p.fail("control character in a string")
		case c != '\\':
			out = append(out, c)
		default:
			var err error
			if out, err = p.escape(out); err != nil {
				return "", err
			}
		}
	}
	return "", p.fail("string ends early")
}

func (p *parser) escape(out []byte) ([]byte, error) {
	if p.at >= len(p.data) {
		return nil, p.fail("string ends early")
	}
	c := p.data[p.at]
	p.at++
	switch c {
	case '"', '\\', '/':
		return append(out, c), nil
	case 'b':
		return append(out, '\b'), nil
	case 'f':
		return append(out, '\f'), nil
	case 'n':
		return append(out, '\n'), nil
	case 'r':
		return append(out, '\r'), nil
	case 't':
		return append(out, '\t'), nil
	case 'u':
		r, err := p.hex4()
		if err != nil {
			return nil, err
		}
		if utf16.IsSurrogate(r) {
			if p.at+1 < len(p.data) && p.data[p.at] == '\\' && p.data[p.at+1] == 'u' {
				p.at += 2
				low, err := p.hex4()
				if err != nil {
					return nil, err
				}
				r = utf16.DecodeRune(r, low)
			} else {
				r = utf8.RuneError
			}
		}
		var buf [utf8.UTFMax]byte
		return append(out, buf[:utf8.EncodeRune(buf[:], r)]...), nil
	}
	return nil, p.fail("unknown escape")
}

func (p *parser) hex4() (rune, error) {
	if len(p.data)-p.at < 4 {
		return 0, p.fail("bad \\u escape")
	}
	n, err := strconv.ParseUint(string(p.data[p.at:p.at+4]), 16, 32)
	if err != nil {
		return 0, p.fail("bad \\u escape")
	}
	p.at += 4
	return rune(n), nil
}
