package volume

import (
	"reflect"
	"testing"

	"releap/guest/internal/jsonlite"
)

func TestAVolumeInsideAnotherIsMountedAfterIt(t *testing.T) {
	specs := []Spec{{"a", "/data/cache/deep"}, {"b", "/data"}, {"c", "/data/cache"}, {"d", "/srv"}}
	var paths []string
	for _, spec := range outerFirst(specs) {
		paths = append(paths, spec.Path)
	}
	if wanted := []string{"/srv", "/data", "/data/cache", "/data/cache/deep"}; !reflect.DeepEqual(paths, wanted) {
		t.Errorf("%v", paths)
	}
}

func TestWhatIsNoVolumeIsRefused(t *testing.T) {
	for _, text := range []string{`{}`, `{"tag":"a","path":"relative"}`, `{"tag":"a b","path":"/a"}`, `{"tag":1,"path":"/a"}`} {
		value, err := jsonlite.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if spec, err := Parse(value); err == nil {
			t.Errorf("%s: %v", text, spec)
		}
	}
}
