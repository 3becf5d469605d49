package main

import (
	"net/http"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"releap/guest/internal/process"
)

func (t *toolbox) addFiles() {
	t.add("POST", "files/bulk-upload", bulkUpload)
	t.add("POST", "files/bulk-download", bulkDownload)
	t.add("POST", "files/move", move)
	t.add("POST", "files/permissions", permissions)
	t.add("GET", "files/find", findText)
	t.add("GET", "files/search", searchNames)
	t.add("POST", "files/replace", replaceText)
}

// move renames a file or folder; into a folder that exists, it keeps its name there. Between file systems it answers EXDEV.
func move(c *call) error {
	source, err := c.path("source")
	if err != nil {
		return err
	}
	target, err := c.path("destination")
	if err != nil {
		return err
	}
	if !exists(source) {
		return fail(http.StatusNotFound, "%s: not found", source)
	}
	if info, err := os.Stat(target); err == nil && info.IsDir() {
		target = path.Join(target, path.Base(source))
	}
	switch err := unix.Renameat2(unix.AT_FDCWD, source, unix.AT_FDCWD, target, unix.RENAME_NOREPLACE); err {
	case nil:
		return c.send(http.StatusOK, object{"path": target})
	case unix.EEXIST:
		return fail(http.StatusConflict, "%s: exists already", target)
	case unix.EXDEV:
		return badRequest("%s and %s are on different file systems: copy and delete instead", source, target)
	default:
		return atPath(source+" to "+target, err)
	}
}

// permissions changes mode, owner and group of one file or folder. It opens it first, so that all three change the same one.
func permissions(c *call) error {
	target, err := c.path("path")
	if err != nil {
		return err
	}
	query := c.r.URL.Query()
	uid, gid := -1, -1
	if owner := query.Get("owner"); owner != "" {
		user, err := process.LookupUser("", owner)
		if err != nil {
			return err
		}
		uid = int(user.UID)
	}
	if group := query.Get("group"); group != "" {
		user, err := process.LookupUser("", "0:"+group)
		if err != nil {
			return err
		}
		gid = int(user.GID)
	}
	mode := query.Get("mode")
	bits, err := strconv.ParseUint(mode, 8, 16)
	if mode != "" && (err != nil || bits > 0o7777) {
		return badRequest("mode %q must be octal permissions such as 644", mode)
	}
	fd, err := unix.Open(target, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return atPath(target, err)
	}
	defer unix.Close(fd)
	if uid >= 0 || gid >= 0 {
		if err := unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH); err != nil {
			return atPath(target, err)
		}
	}
	if mode != "" {
		// fchmod(2) refuses a descriptor of O_PATH; its link in /proc leads to the same file.
		if err := unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), uint32(bits)); err != nil {
			return atPath(target, err)
		}
	}
	return c.done(http.StatusOK)
}
