package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"releap/host/internal/hosttest"
)

// crash runs voltree in a process that ends with SIGKILL at a step.
func crash(t *testing.T, step string, arguments ...string) {
	t.Helper()
	crashFor(t, new(caller), step, arguments...)
}

func crashFor(t *testing.T, c *caller, step string, arguments ...string) {
	t.Helper()
	if output, ok := tryCrash(t, c, step, arguments...); !ok {
		t.Fatalf("voltree %v did not reach %s: %s", arguments, step, output)
	}
}

// tryCrash says whether it came to that step.
func tryCrash(t *testing.T, c *caller, step string, arguments ...string) (output []byte, reached bool) {
	t.Helper()
	folder := t.TempDir()
	write(t, filepath.Join(folder, step), nil)
	child := exec.Command(os.Args[0], arguments...)
	child.Env = append(os.Environ(), asVoltree+"=1", "RELEAP_CRASH_AT="+folder)
	var stderr bytes.Buffer
	child.Stdin, child.Stdout, child.Stderr = c.open(), c, &stderr
	err := child.Run()
	c.close()
	var ended *exec.ExitError
	if err == nil {
		return stderr.Bytes(), false
	}
	if !errors.As(err, &ended) || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("voltree %v ended with %v: %s", arguments, err, stderr.Bytes())
	}
	return stderr.Bytes(), true
}

func TestAnInterruptedCommandIsRepeated(t *testing.T) {
	hosttest.NeedsRoot(t, "owners of files")
	volume, store := t.TempDir(), t.TempDir()
	first := newHost(t, volume, "first")
	plant(t, first.data)
	for _, step := range []string{"voltree-scanned", "voltree-packed", "voltree-offered"} {
		crash(t, step, first.commitArguments()...)
	}
	write(t, filepath.Join(first.data, "late"), []byte("after the crash"))
	committed := first.commit()
	first.upload(store, append(committed.New, blob{Digest: committed.root()}))
	crash(t, "voltree-accepted", "accept", "--state", first.state, committed.root())
	first.do("accept", "--state", first.state, committed.root())
	left, err := os.ReadDir(first.state)
	must(t, err)
	if len(left) != 3 { // base, index, lock
		t.Fatalf("the state has %v", left)
	}
	advanceCtime()
	first.publish(store)
	crash(t, "voltree-replaced", first.commitArguments()...)
	if root := first.publish(store); root != "same" {
		t.Fatalf("a tree that has not changed is committed as %s", root)
	}
	want := describe(t, first.data)
	second := newHost(t, volume, "second")
	for _, step := range []string{"voltree-segment", "voltree-placed", "voltree-filled", "voltree-written", "voltree-replaced"} {
		c := newCaller(t, store, committed.root())
		crashFor(t, c, step, second.checkoutArguments(c, committed.root())...)
	}
	second.checkout(store, committed.root())
	assertSame(t, describe(t, second.data), want)
	if root := second.publish(store); root != "same" {
		t.Fatalf("a tree that was just checked out is committed as %s", root)
	}
}

func TestAFullDiskLosesNothing(t *testing.T) {
	hosttest.NeedsRoot(t, "mounts a file system")
	small := t.TempDir()
	must(t, unix.Mount("tmpfs", small, "tmpfs", 0, "size=2m"))
	t.Cleanup(func() { must(t, unix.Unmount(small, 0)) })
	volume, store := t.TempDir(), t.TempDir()
	first, second := newHost(t, volume, "first"), newHost(t, volume, "second")
	plant(t, first.data)
	outgoing := first.outgoing
	first.outgoing = filepath.Join(small, "outgoing")
	if _, code, message := try(first.commitArguments()...); code != exitFull || !strings.Contains(message, "no space left") {
		t.Fatalf("a commit without space for its packs ended with %d: %s", code, message)
	}
	left, err := os.ReadDir(first.outgoing)
	must(t, err)
	if len(left) != 0 {
		t.Fatalf("a failed commit has left %v", left)
	}
	first.outgoing = outgoing
	root := first.publish(store)
	full := *second
	full.data = filepath.Join(small, "data")
	must(t, os.Mkdir(full.data, 0o700))
	if _, code, message := full.tryCheckout(store, root); code != exitFull {
		t.Fatalf("a checkout without space ended with %d: %s", code, message)
	}
	second.checkout(store, root)
	assertSame(t, describe(t, second.data), describe(t, first.data))
}

func TestBlobsThatAreMissingOrDamagedAreNamed(t *testing.T) {
	hosttest.NeedsRoot(t, "owners of files")
	volume, store := t.TempDir(), t.TempDir()
	first, second := newHost(t, volume, "first"), newHost(t, volume, "second")
	plant(t, first.data)
	committed := first.commit()
	root := first.publish(store)
	for _, pack := range committed.New {
		path := filepath.Join(store, strings.TrimPrefix(pack.Digest, "sha256:"))
		whole, err := os.ReadFile(path)
		must(t, err)
		must(t, os.Remove(path))
		if _, code, message := second.tryCheckout(store, root); code != 1 || !strings.Contains(message, "missing") {
			t.Fatalf("a checkout without a pack ended with %d: %s", code, message)
		}
		damaged := append([]byte(nil), whole...)
		damaged[len(damaged)/2] ^= 1
		write(t, path, damaged)
		if _, code, message := second.tryCheckout(store, root); code != 1 || !strings.Contains(message, "damaged") {
			t.Fatalf("a checkout of a damaged pack ended with %d: %s", code, message)
		}
		write(t, path, whole)
	}
	second.checkout(store, root)
	assertSame(t, describe(t, second.data), describe(t, first.data))
	if _, code, message := try("accept", "--state", second.state, strings.Repeat("0", 64)); code != 1 || !strings.Contains(message, "is not the pending commit") {
		t.Fatalf("accept of an unknown root ended with %d: %s", code, message)
	}
	for _, arguments := range [][]string{{}, {"x"}, {"commit"}, {"commit", "--root", "/"}, {"accept", "--state", second.state, "zz"}} {
		if _, code, _ := try(arguments...); code != exitUsage {
			t.Fatalf("voltree %v ended with %d", arguments, code)
		}
	}
}
