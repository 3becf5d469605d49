package main

import (
	"bufio"
	"bytes"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

const (
	matchesMax   = 10_000
	lineShown    = 4 << 10
	lineMax      = 1 << 20
	binaryProbe  = 8 << 10
	replaceMax   = 64 << 20 // of one file: it is held in memory
	replaceFiles = 10_000
	// truncatedHeader tells that there are more matches than the answer has.
	truncatedHeader = "X-Releap-Truncated"
)

type textMatch struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Content string `json:"content"`
}

// pattern is a regular expression in RE2's syntax, or literal text where it is none.
func pattern(text string) (*regexp.Regexp, error) {
	if text == "" || len(text) > 64<<10 {
		return nil, badRequest("the pattern must have 1 to %d bytes", 64<<10)
	}
	expression, err := regexp.Compile(text)
	if err != nil {
		expression = regexp.MustCompile(regexp.QuoteMeta(text))
	}
	return expression, nil
}

// findText lists the lines of text files that match.
func findText(c *call) error {
	root, err := c.path("path")
	if err != nil {
		return err
	}
	expression, err := pattern(c.r.URL.Query().Get("pattern"))
	if err != nil {
		return err
	}
	matches := []textMatch{}
	err = walk(c, root, func(path string, entry fs.DirEntry) bool {
		if entry.Type().IsRegular() {
			matches = findLines(path, expression, matches)
		}
		return len(matches) < matchesMax
	})
	if err != nil {
		return err
	}
	if len(matches) == matchesMax {
		c.w.Header().Set(truncatedHeader, "true")
	}
	return c.send(http.StatusOK, matches)
}

// findLines adds the matching lines of a file, unless it is binary or cannot be read.
func findLines(path string, expression *regexp.Regexp, matches []textMatch) []textMatch {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return matches
	}
	defer file.Close()
	reader := bufio.NewReaderSize(file, 64<<10)
	if probe, _ := reader.Peek(binaryProbe); bytes.IndexByte(probe, 0) >= 0 {
		return matches
	}
	lines := bufio.NewScanner(reader)
	lines.Buffer(nil, lineMax)
	for number := 1; lines.Scan() && len(matches) < matchesMax; number++ {
		if line := lines.Bytes(); expression.Match(line) {
			if len(line) > lineShown {
				line = line[:lineShown]
			}
			matches = append(matches, textMatch{path, number, strings.ToValidUTF8(string(line), "\uFFFD")})
		}
	}
	return matches
}

// searchNames lists files and folders whose name matches a shell pattern.
func searchNames(c *call) error {
	root, err := c.path("path")
	if err != nil {
		return err
	}
	glob := c.r.URL.Query().Get("pattern")
	if _, err := filepath.Match(glob, ""); err != nil || glob == "" {
		return badRequest("pattern %q is not a shell pattern such as *.txt", glob)
	}
	files := []string{}
	err = walk(c, root, func(path string, entry fs.DirEntry) bool {
		if matched, _ := filepath.Match(glob, entry.Name()); matched && path != root {
			files = append(files, path)
		}
		return len(files) < matchesMax
	})
	if err != nil {
		return err
	}
	if len(files) == matchesMax {
		c.w.Header().Set(truncatedHeader, "true")
	}
	return c.send(http.StatusOK, object{"files": files})
}

// walk visits all below a folder, without following links, until visit answers false or the client is gone. The file systems of
// the kernel are left out, unless the walk begins in one.
func walk(c *call, root string, visit func(string, fs.DirEntry) bool) error {
	gone := c.r.Context().Done()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			if path == root {
				return atPath(root, err)
			}
			return nil
		}
		select {
		case <-gone:
			return io.EOF
		default:
		}
		if entry.IsDir() && path != root && (path == "/proc" || path == "/sys" || path == "/dev") {
			return filepath.SkipDir
		}
		if !visit(path, entry) {
			return io.EOF
		}
		return nil
	})
	if err == io.EOF {
		return nil
	}
	return err
}

type replaced struct {
	File    string `json:"file"`
	Success bool   `json:"success"`
	Error   string `json:"error,omitempty"`
}

// replaceText replaces all matches in files. The new text is literal.
func replaceText(c *call) error {
	var body struct {
		Files    []string `json:"files"`
		Pattern  string   `json:"pattern"`
		NewValue string   `json:"newValue"`
	}
	if err := c.body(&body); err != nil {
		return err
	}
	if len(body.Files) == 0 || len(body.Files) > replaceFiles {
		return badRequest("files must have 1 to %d entries", replaceFiles)
	}
	expression, err := pattern(body.Pattern)
	if err != nil {
		return err
	}
	results := make([]replaced, 0, len(body.Files))
	for _, given := range body.Files {
		result := replaced{File: given, Success: true}
		if err := c.replaceIn(given, expression, []byte(body.NewValue)); err != nil {
			result.Success = false
			_, result.Error = statusOf(err)
		}
		results = append(results, result)
	}
	return c.send(http.StatusOK, results)
}

func (c *call) replaceIn(given string, expression *regexp.Regexp, text []byte) error {
	file, size, err := c.openFile(given)
	if err != nil {
		return err
	}
	defer file.Close()
	if size > replaceMax {
		return fail(http.StatusRequestEntityTooLarge, "%s: larger than %d bytes", given, replaceMax)
	}
	before, err := io.ReadAll(io.LimitReader(file, replaceMax))
	if err != nil {
		return atPath(given, err)
	}
	after := expression.ReplaceAllLiteral(before, text)
	if bytes.Equal(before, after) {
		return nil
	}
	owner, err := c.user()
	if err != nil {
		return err
	}
	target, err := c.absolute(given)
	if err != nil {
		return err
	}
	return atPath(given, writeFile(target, owner, bytes.NewReader(after)))
}
