package memory

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestApplyWritesWhatTheFileHoldsAndNothingElse(t *testing.T) {
	source, content := sparse(t)
	size := (len(content) + pageBytes - 1) / pageBytes * pageBytes
	if err := os.Truncate(source, int64(size)); err != nil {
		t.Fatal(err)
	}
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	before := bytes.Repeat([]byte("b"), size)
	copy(memory, before)
	address := uint64(uintptr(unsafe.Pointer(&memory[0])))
	args := []string{source, fmt.Sprint(os.Getpid()), fmt.Sprint(address), fmt.Sprint(size)}
	if err := Apply(args); err != nil {
		t.Fatal(err)
	}
	expected := before
	file, err := os.Open(source)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := EachExtent(file, func(start, end int64) error {
		copy(expected[start:end], append(append([]byte{}, content...), make([]byte, pageBytes)...)[start:end])
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(memory, expected) {
		t.Error("the memory is not the file's data and its own rest")
	}
}

func TestApplyRefusesWhatDoesNotFit(t *testing.T) {
	source, content := sparse(t)
	size := fmt.Sprint(len(content))
	for _, args := range [][]string{
		{}, {source, "1", "0"}, {source, "x", "0", size}, {source, "1", "-1", size}, {source, fmt.Sprint(os.Getpid()), "4096", "4096"},
		{source + ".missing", "1", "0", size}, {source, "4194304", "4096", size},
	} {
		if Apply(args) == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
