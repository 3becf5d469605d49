package process

import (
	"io"
	"os"
	"strconv"
	"strings"

	"releap/guest/internal/fault"
)

// User is who a process runs as.
type User struct {
	UID, GID uint32
	Groups   []uint32
	Name     string
	Home     string
}

// accountsLimit bounds what is read of the image's account files, which an image may have made huge.
const accountsLimit = 4 << 20

// LookupUser resolves "", "name", "uid", "name:group", "uid:gid" as OCI image configurations write them, in the
// passwd and group files below root ("" for the current root). As other container runtimes do: a bare number
// needs no account; supplementary groups are those that list the user, and none when a group is given.
func LookupUser(root, spec string) (User, error) {
	userPart, groupPart := spec, ""
	if i := strings.IndexByte(spec, ':'); i >= 0 {
		userPart, groupPart = spec[:i], spec[i+1:]
		if groupPart == "" {
			return User{}, fault.New(fault.Invalid, "user "+strconv.Quote(spec)+" names no group after the colon")
		}
	}
	if userPart == "" {
		userPart = "0"
	}
	u := User{Home: "/"}
	number, isNumber := id(userPart)
	found := false
	err := eachLine(root+"/etc/passwd", func(f []string) bool {
		if len(f) < 6 {
			return true
		}
		uid, ok := id(f[2])
		gid, ok2 := id(f[3])
		byName, byNumber := f[0] == userPart, isNumber && uid == number
		if ok && ok2 && (byName || (byNumber && !found)) {
			found = true
			u.UID, u.GID, u.Name, u.Home = uid, gid, f[0], f[5]
		}
		return !byName // an account whose name is a number wins over that number
	})
	if err != nil {
		return User{}, err
	}
	if !found {
		if !isNumber {
			return User{}, fault.New(fault.NotFound, "user "+strconv.Quote(userPart)+" is not in the image's /etc/passwd")
		}
		u.UID = number
		if number == 0 {
			u.Name, u.Home = "root", "/root"
		}
	}
	if u.Home == "" {
		u.Home = "/"
	}
	if groupPart != "" {
		u.GID, err = lookupGroup(root, groupPart)
		return u, err
	}
	if u.Name != "" {
		err = eachLine(root+"/etc/group", func(f []string) bool {
			if len(f) < 4 {
				return true
			}
			for _, member := range strings.Split(f[3], ",") {
				if gid, ok := id(f[2]); ok && member == u.Name && len(u.Groups) < 1024 {
					u.Groups = append(u.Groups, gid)
					break
				}
			}
			return true
		})
	}
	return u, err
}

func lookupGroup(root, name string) (uint32, error) {
	number, isNumber := id(name)
	var gid uint32
	found := false
	err := eachLine(root+"/etc/group", func(f []string) bool {
		if len(f) >= 3 && f[0] == name {
			gid, found = id(f[2])
		}
		return !found
	})
	if err == nil && !found {
		if !isNumber {
			return 0, fault.New(fault.NotFound, "group "+strconv.Quote(name)+" is not in the image's /etc/group")
		}
		gid = number
	}
	return gid, err
}

func id(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n < 1<<32-1 // all ones means "unchanged" to the kernel
}

// eachLine calls f with the colon separated fields of every line until f answers false. No file, no lines.
func eachLine(path string, f func([]string) bool) error {
	file, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
	if err != nil {
		if os.IsNotExist(err) {
			return nil
		}
		return err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return fault.New(fault.Invalid, path+" is not a regular file")
	}
	text, err := io.ReadAll(io.LimitReader(file, accountsLimit))
	if err != nil {
		return err
	}
	for _, line := range strings.Split(string(text), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		if !f(strings.Split(line, ":")) {
			break
		}
	}
	return nil
}
