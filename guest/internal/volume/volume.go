// Package volume mounts the folders that the host shares with the sandbox (virtiofs).
package volume

import (
	"os"
	"strings"
	"syscall"
	"time"

	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
)

const (
	fsType = "virtiofs"
	// patience for a driver to find its device after its module was loaded.
	patience = 10 * time.Second
)

// Modules that mounts need. Where the kernel has them built in, none is found.
var Modules = []string{"fuse", fsType}

// Spec of a mount.
type Spec struct {
	// Tag of the device.
	Tag string
	// Path of the mount, which is made if it does not exist.
	Path string
}

// Parse reads {tag, path}.
func Parse(v jsonlite.Value) (s Spec, err error) {
	if s.Tag, err = v.Get("tag").Text("volume.tag"); err != nil {
		return s, err
	}
	if s.Path, err = v.Get("path").Text("volume.path"); err != nil {
		return s, err
	}
	if s.Tag == "" || strings.ContainsAny(s.Tag, " \t\n\\") || !strings.HasPrefix(s.Path, "/") {
		return s, fault.New(fault.Invalid, "volume.tag must be a word and volume.path absolute")
	}
	return s, nil
}

// Mount mounts all, shorter paths first: one may lie in another.
func Mount(specs []Spec) error {
	for _, spec := range outerFirst(specs) {
		if err := os.MkdirAll(spec.Path, 0o755); err != nil {
			return fault.New(fault.Code(err), "volume at "+spec.Path+": "+err.Error())
		}
		if err := mount(spec); err != nil {
			return err
		}
	}
	return nil
}

func outerFirst(specs []Spec) []Spec {
	sorted := append([]Spec{}, specs...)
	for i := range sorted {
		for j := i; j > 0 && len(sorted[j].Path) < len(sorted[j-1].Path); j-- {
			sorted[j], sorted[j-1] = sorted[j-1], sorted[j]
		}
	}
	return sorted
}

func mount(spec Spec) error {
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := syscall.Mount(spec.Tag, spec.Path, fsType, 0, "")
		if err == nil {
			return nil
		}
		if err == syscall.ENODEV {
			return fault.New(fault.State, "the kernel of this sandbox has no "+fsType+", which volumes need")
		}
		// No device has that tag yet.
		if err != syscall.EINVAL || time.Now().After(end) {
			return fault.New(fault.Internal, "mounting the volume at "+spec.Path+": "+err.Error())
		}
	}
}
