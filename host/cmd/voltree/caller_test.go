package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"releap/host/internal/volume/rpc"
)

// caller is what a runner is for voltree: it copies packs from a store when it is asked for them.
type caller struct {
	t               *testing.T
	store, incoming string
	outgoing        string
	line            bytes.Buffer
	result          []byte
	stdin, answers  *os.File
	fetched, stored []string
	// The most bytes that were in the folder at a time, without those that were there first.
	most int64
}

// newCaller has an empty folder for packs, with the root blob alone.
func newCaller(t *testing.T, store, root string) *caller {
	t.Helper()
	c := &caller{t: t, store: store, incoming: t.TempDir()}
	data, err := os.ReadFile(filepath.Join(store, root))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(c.incoming, root), data, 0o600))
	return c
}

// open gives the command's standard input.
func (c *caller) open() io.Reader {
	var err error
	if c.stdin, c.answers, err = os.Pipe(); err != nil {
		panic(err)
	}
	if c.t == nil { // it brings nothing
		c.answers.Close()
		c.answers = nil
	}
	return c.stdin
}

func (c *caller) close() {
	c.stdin.Close()
	if c.answers != nil {
		c.answers.Close()
	}
}

// Write takes what the command prints. What the store lacks is not answered, and nothing is after it.
func (c *caller) Write(data []byte) (int, error) {
	c.line.Write(data)
	for {
		line, err := c.line.ReadBytes('\n')
		if err != nil {
			c.line.Write(line)
			return len(data), nil
		}
		var request struct{ Fetch, Store *rpc.Blob }
		err = json.Unmarshal(line, &request)
		switch {
		case err == nil && request.Fetch != nil:
			c.fetch(strings.TrimPrefix(request.Fetch.Digest, "sha256:"))
		case err == nil && request.Store != nil:
			c.take(strings.TrimPrefix(request.Store.Digest, "sha256:"))
		default:
			c.result = line
		}
	}
}

func (c *caller) fetch(name string) {
	if c.answers == nil {
		return
	}
	data, err := os.ReadFile(filepath.Join(c.store, name))
	if os.IsNotExist(err) {
		c.answers.Close()
		c.answers = nil
		return
	}
	must(c.t, err)
	must(c.t, os.WriteFile(filepath.Join(c.incoming, name), data, 0o600))
	c.fetched = append(c.fetched, name)
	c.measure(c.incoming)
	_, err = c.answers.WriteString(name + "\n")
	must(c.t, err)
}

func (c *caller) take(name string) {
	if c.answers == nil {
		return
	}
	c.measure(c.outgoing)
	data, err := os.ReadFile(filepath.Join(c.outgoing, name))
	must(c.t, err)
	must(c.t, os.WriteFile(filepath.Join(c.store, name), data, 0o600))
	c.stored = append(c.stored, name)
	_, err = c.answers.WriteString(name + "\n")
	must(c.t, err)
}

func (c *caller) measure(folder string) {
	entries, err := os.ReadDir(folder)
	must(c.t, err)
	sum := int64(0)
	for _, entry := range entries {
		info, err := entry.Info()
		must(c.t, err)
		sum += info.Size()
	}
	if sum > c.most {
		c.most = sum
	}
}

// try runs voltree in this process.
func (c *caller) try(arguments ...string) (answer, int, string) {
	var stderr bytes.Buffer
	code := run(arguments, c.open(), c, &stderr)
	c.close()
	var result answer
	if code == 0 {
		if err := json.Unmarshal(c.result, &result); err != nil {
			return result, -1, err.Error()
		}
	}
	return result, code, stderr.String()
}
