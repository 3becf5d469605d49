package main

import (
	"mime"
	"strings"
	"testing"
)

func TestNamesOfPartsSurviveAnyClient(t *testing.T) {
	for _, name := range []string{"/a b/c.txt", "/ü", `/with "quotes"`, `/back\slash`, "/100%", "/new\nline"} {
		_, params, err := mime.ParseMediaType(disposition("file", name))
		if err != nil || params["filename"] != name || params["name"] != "file" {
			t.Errorf("%q became %q: %v", name, params, err)
		}
	}
	// Some clients read only `filename`: as UTF-8, and then the Latin-1 bytes of that as UTF-8 once more.
	_, twice, found := strings.Cut(disposition("file", "/öl"), `; filename="`)
	var once []byte
	for _, char := range strings.TrimSuffix(twice, `"`) {
		once = append(once, byte(char))
	}
	if !found || string(once) != "/öl" {
		t.Errorf("it is %q for clients of `filename`", once)
	}
}

func TestPathsOfRoutesAreMatchedWhole(t *testing.T) {
	for path, want := range map[string]bool{"a/1/b": true, "a//b": false, "a/1/b/c": false, "a/1": false} {
		if _, ok := match([]string{"a", "*", "b"}, split(path)); ok != want {
			t.Errorf("%s: %v", path, ok)
		}
	}
}
