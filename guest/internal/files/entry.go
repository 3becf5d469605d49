// Package files reads and changes the sandbox's file system for the host, as root.
package files

import (
	"os"
	"path"
	"sort"
	"strconv"
	"strings"
	"syscall"

	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
)

// listLimit is the most entries one listing carries.
const listLimit = 10000

// Path checks a path and makes it absolute, relative ones below base.
func Path(v jsonlite.Value, base string) (string, error) {
	p, err := v.Get("path").Text("path")
	if err != nil {
		return "", err
	}
	if p == "" || len(p) > 4095 || strings.IndexByte(p, 0) >= 0 {
		return "", fault.New(fault.Invalid, "path must be 1 to 4095 bytes without NUL")
	}
	if p[0] != '/' {
		p = strings.TrimSuffix(base, "/") + "/" + p
	}
	return p, nil
}

// failed gives an error its code and a text that starts with the path the caller knows.
func failed(path string, err error) error {
	code := fault.Code(err)
	if e, ok := err.(*os.PathError); ok {
		err = e.Err
	}
	return fault.New(code, path+": "+err.Error())
}

func kindOf(mode os.FileMode) string {
	switch {
	case mode.IsRegular():
		return "file"
	case mode.IsDir():
		return "directory"
	case mode&os.ModeSymlink != 0:
		return "symlink"
	case mode&os.ModeNamedPipe != 0:
		return "fifo"
	case mode&os.ModeSocket != 0:
		return "socket"
	case mode&os.ModeDevice != 0:
		return "device"
	}
	return "other"
}

// describe one entry: {name, type, size, mode (octal text), mtime_ms, uid, gid, link?}.
func describe(w *jsonlite.Writer, full, name string, info os.FileInfo) {
	st, ok := info.Sys().(*syscall.Stat_t)
	w.Open('{').Key("name").Text(name).Key("type").Text(kindOf(info.Mode())).Key("size").Int(info.Size())
	if ok {
		w.Key("mode").Text(strconv.FormatUint(uint64(st.Mode&0o7777), 8))
		w.Key("uid").Int(int64(st.Uid)).Key("gid").Int(int64(st.Gid))
	}
	w.Key("mtime_ms").Int(info.ModTime().UnixNano() / 1e6)
	if info.Mode()&os.ModeSymlink != 0 {
		if target, err := os.Readlink(full); err == nil {
			w.Key("link").Text(target)
		}
	}
	w.Close('}')
}

// Stat answers one entry. With follow, of what a link points to.
func Stat(w *jsonlite.Writer, p string, follow bool) error {
	get := os.Lstat
	if follow {
		get = os.Stat
	}
	info, err := get(p)
	if err != nil {
		return failed(p, err)
	}
	describe(w, p, path.Base(p), info)
	return nil
}

// List a folder, by name; beyond listLimit it is cut and says so.
func List(w *jsonlite.Writer, p string) error {
	dir, err := os.OpenFile(p, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return failed(p, err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(listLimit + 1)
	if err != nil && len(names) == 0 && err.Error() != "EOF" {
		return failed(p, err)
	}
	truncated := len(names) > listLimit
	if truncated {
		names = names[:listLimit]
	}
	sort.Strings(names)
	w.Open('{').Key("entries").Open('[')
	for _, name := range names {
		full := p + "/" + name
		info, err := os.Lstat(full)
		if err != nil {
			continue // gone meanwhile
		}
		if w.Len() > 3<<20 {
			truncated = true
			break
		}
		describe(w, full, name, info)
	}
	w.Close(']').Key("truncated").Flag(truncated).Close('}')
	return nil
}

// Remove an entry; a folder that is not empty only when recursive.
func Remove(p string, recursive bool) error {
	if path.Clean(p) == "/" {
		return fault.New(fault.Invalid, "the root folder cannot be removed")
	}
	if _, err := os.Lstat(p); err != nil {
		return failed(p, err)
	}
	remove := os.Remove
	if recursive {
		remove = os.RemoveAll
	}
	if err := remove(p); err != nil {
		return failed(p, err)
	}
	return nil
}

// MakeDir makes a folder and, with parents, those above it; then one that exists is no error.
func MakeDir(p string, mode os.FileMode, parents bool) error {
	if parents {
		if err := os.MkdirAll(p, 0o755); err != nil {
			return failed(p, err)
		}
	} else if err := os.Mkdir(p, 0o755); err != nil {
		return failed(p, err)
	}
	if err := os.Chmod(p, mode); err != nil {
		return failed(p, err)
	}
	return nil
}

// Mode reads an octal permission text such as "644".
func Mode(v jsonlite.Value, fallback os.FileMode) (os.FileMode, bool, error) {
	text, err := v.Get("mode").Text("mode")
	if err != nil || text == "" {
		return fallback, false, err
	}
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > 0o7777 {
		return 0, false, fault.New(fault.Invalid, "mode must be octal permissions such as \"644\"")
	}
	mode := os.FileMode(n & 0o777)
	for bit, flag := range map[uint64]os.FileMode{0o4000: os.ModeSetuid, 0o2000: os.ModeSetgid, 0o1000: os.ModeSticky} {
		if n&bit != 0 {
			mode |= flag
		}
	}
	return mode, true, nil
}
