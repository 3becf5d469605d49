package jsonlite

import (
	"strconv"

	"releap/guest/internal/fault"
)

// Get finds a key of an object; the Missing value when it is absent or v is no object.
func (v Value) Get(key string) Value {
	for i, k := range v.keys {
		if k == key {
			return v.items[i]
		}
	}
	return Value{}
}

// Kind of the value.
func (v Value) Kind() Kind { return v.kind }

// Present tells whether the key existed and was not null.
func (v Value) Present() bool { return v.kind > Null }

// Items of an array.
func (v Value) Items() []Value {
	if v.kind != Array {
		return nil
	}
	return v.items
}

// Each calls f for every entry of an object, in order.
func (v Value) Each(f func(key string, item Value) error) error {
	for i, k := range v.keys {
		if err := f(k, v.items[i]); err != nil {
			return err
		}
	}
	return nil
}

func wrong(what, want string) error {
	return fault.New(fault.Invalid, what+" must be "+want)
}

// Text reads an optional string: absent or null gives "".
func (v Value) Text(what string) (string, error) {
	if !v.Present() {
		return "", nil
	}
	if v.kind != String {
		return "", wrong(what, "a string")
	}
	return v.text, nil
}

// Int reads an optional integer within [min, max]; absent gives the fallback.
func (v Value) Int(what string, fallback, min, max int64) (int64, error) {
	if !v.Present() {
		return fallback, nil
	}
	n, err := strconv.ParseInt(v.text, 10, 64)
	if v.kind != Number || err != nil || n < min || n > max {
		return 0, wrong(what, "an integer from "+strconv.FormatInt(min, 10)+" to "+strconv.FormatInt(max, 10))
	}
	return n, nil
}

// Flag reads an optional boolean, false when absent.
func (v Value) Flag(what string) (bool, error) {
	if !v.Present() {
		return false, nil
	}
	if v.kind != Bool {
		return false, wrong(what, "true or false")
	}
	return v.flag, nil
}

// Texts reads an optional array of strings.
func (v Value) Texts(what string) ([]string, error) {
	if !v.Present() {
		return nil, nil
	}
	if v.kind != Array {
		return nil, wrong(what, "an array of strings")
	}
	out := make([]string, len(v.items))
	for i, item := range v.items {
		if item.kind != String {
			return nil, wrong(what, "an array of strings")
		}
		out[i] = item.text
	}
	return out, nil
}

// TextMap reads an optional object whose values are strings.
func (v Value) TextMap(what string) (map[string]string, error) {
	if v.Present() && v.kind != Object {
		return nil, wrong(what, "an object of strings")
	}
	out := make(map[string]string, len(v.keys))
	for i, k := range v.keys {
		if v.items[i].kind != String {
			return nil, wrong(what+"."+k, "a string")
		}
		out[k] = v.items[i].text
	}
	return out, nil
}
