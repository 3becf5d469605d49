package precopy

import (
	"strings"
	"testing"
)

const example = `55d0c0000000-55d0c0100000 r-xp 00000000 fe:01 12 /usr/bin/qemu-system-x86_64
55d0c2000000-55d0c2800000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0020000000 rw-p 00000000 00:01 99 /memfd:releap-memory (deleted)
7f0030000000-7f0030001000 rw-p 00000000 00:00 0
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]
7ffd00030000-7ffd00034000 r--p 00000000 00:00 0 [vvar]
7ffd00034000-7ffd00036000 r-xp 00000000 00:00 0 [vdso]
`

func TestReadsMappings(t *testing.T) {
	mappings, err := parseMappings(strings.NewReader(example))
	if err != nil || len(mappings) != 7 {
		t.Fatalf("%d mappings, %v", len(mappings), err)
	}
	if mappings[2].name != "/memfd:releap-memory (deleted)" || mappings[3].name != "" {
		t.Errorf("names %q and %q", mappings[2].name, mappings[3].name)
	}
}

func FuzzParseMapping(f *testing.F) {
	for _, line := range strings.Split(example, "\n") {
		f.Add(line)
	}
	f.Add("ffffffffffffffff-0 r 0 0 0")
	f.Fuzz(func(t *testing.T, line string) {
		one, err := parseMapping(line)
		if err == nil && one.end < one.start {
			t.Errorf("%q: %+v", line, one)
		}
	})
}
