package jsonlite

import (
	"encoding/json"
	"testing"
)

var seeds = []string{
	`{}`, `{"a":1,"b":[true,false,null,"x"],"c":{"d":"é\ud83d\ude00\n"}}`, `[1e5,-0.5,0]`, `"\u0000"`, ` { "a" : "b" } `,
	`{"a":1,"a":2}`, `01`, `{"a"}`, `[1,]`, `"\x"`, "\"\xff\"", `{"a":"` + "\x01" + `"}`, ``, `nul`, `"\ud800"`, `[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]`,
}

// Whatever we accept, the standard library accepts too and reads alike.
func FuzzParse(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := Parse(data)
		if err != nil {
			return
		}
		var w Writer
		write(&w, v)
		var ours, theirs interface{}
		if err := json.Unmarshal(data, &theirs); err != nil {
			t.Fatalf("accepted %q, the standard library says %v", data, err)
		}
		if err := json.Unmarshal(w.Bytes(), &ours); err != nil {
			t.Fatalf("wrote %q for %q: %v", w.Bytes(), data, err)
		}
		a, _ := json.Marshal(ours)
		b, _ := json.Marshal(theirs)
		if string(a) != string(b) {
			t.Fatalf("%q read as %s, the standard library reads %s", data, a, b)
		}
	})
}

func write(w *Writer, v Value) {
	switch v.kind {
	case Null:
		w.Null()
	case Bool:
		w.Flag(v.flag)
	case Number:
		w.Raw([]byte(v.text))
	case String:
		w.Text(v.text)
	case Array:
		w.Open('[')
		for _, item := range v.Items() {
			write(w, item)
		}
		w.Close(']')
	case Object:
		w.Open('{')
		_ = v.Each(func(k string, item Value) error {
			w.Key(k)
			write(w, item)
			return nil
		})
		w.Close('}')
	}
}

func TestRefusesWhatIsNotJSON(t *testing.T) {
	for _, s := range []string{``, `{`, `{"a":1,"a":2}`, `01`, `+1`, `1.`, `1e`, `[1,]`, `{"a":}`, `"`, `"\u12"`, `tru`, `{} {}`, "\"\xff\"", "\"\n\""} {
		if _, err := Parse([]byte(s)); err == nil {
			t.Errorf("%q was accepted", s)
		}
	}
}

func TestReadsTypedMembers(t *testing.T) {
	v, err := Parse([]byte(`{"n":5,"f":1.5,"s":"x","l":["a","b"],"m":{"k":"v"},"z":null}`))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := v.Get("n").Int("n", 0, 0, 10); n != 5 || err != nil {
		t.Error(n, err)
	}
	if _, err := v.Get("n").Int("n", 0, 0, 4); err == nil {
		t.Error("out of range was accepted")
	}
	if _, err := v.Get("f").Int("f", 0, 0, 4); err == nil {
		t.Error("a fraction was accepted")
	}
	if _, err := v.Get("s").Flag("s"); err == nil {
		t.Error("a string was accepted as flag")
	}
	if s, err := v.Get("z").Text("z"); s != "" || err != nil {
		t.Error("null is not as good as absent")
	}
	if l, err := v.Get("l").Texts("l"); len(l) != 2 || err != nil {
		t.Error(l, err)
	}
	if m, err := v.Get("m").TextMap("m"); m["k"] != "v" || err != nil {
		t.Error(m, err)
	}
}
