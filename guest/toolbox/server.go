package main

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"runtime/debug"
	"strings"

	"releap/guest/internal/process"
)

// jsonMax bounds a JSON body. Commands and programs are in it, files are not.
const jsonMax = 8 << 20

// version of the daemon, as `GET /version` answers it.
const version = "0.1.0"

// call is one request.
type call struct {
	w      http.ResponseWriter
	r      *http.Request
	params []string
	set    settings
}

type handler func(*call) error

type route struct {
	method   string
	segments []string // "*" matches any one
	handle   handler
}

// toolbox has the state of all operations.
type toolbox struct {
	routes []route
}

func newToolbox() *toolbox {
	t := &toolbox{}
	t.addInfo()
	t.addFiles()
	t.addSessions()
	t.addTerminals()
	t.addInterpreters()
	t.addGit()
	return t
}

// add a route: `*` in the path is a parameter.
func (t *toolbox) add(method, path string, handle handler) {
	t.routes = append(t.routes, route{method, split(path), handle})
}

func split(path string) []string { return strings.Split(path, "/") }

func (t *toolbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{w: w, r: r}
	if conn, ok := r.Context().Value(connKey{}).(*connection); ok {
		c.set = conn.settings
	}
	defer func() {
		if bad := recover(); bad != nil {
			if bad == http.ErrAbortHandler {
				panic(bad)
			}
			log.Printf("%s %s: %v\n%s", r.Method, r.URL.Path, bad, debug.Stack())
			sendError(w, fail(http.StatusInternalServerError, "an internal error of the toolbox"))
		}
	}()
	handle, err := t.find(c)
	if err == nil {
		err = handle(c)
	}
	if err != nil && err != errAnswered {
		sendError(w, err)
	}
}

// errAnswered of a handler says that nothing can be answered any more: it has been, or the client is gone.
var errAnswered = errors.New("answered")

func (t *toolbox) find(c *call) (handler, error) {
	path := strings.TrimPrefix(c.r.URL.Path, "/")
	segments := split(path)
	known := false
	for _, candidate := range t.routes {
		params, ok := match(candidate.segments, segments)
		if !ok {
			continue
		}
		known = true
		if candidate.method == c.r.Method {
			c.params = params
			return candidate.handle, nil
		}
	}
	if known {
		return nil, fail(http.StatusMethodNotAllowed, "%s is not allowed for /%s", c.r.Method, path)
	}
	return nil, fail(http.StatusNotFound, "no such path: %s /%s: not found", c.r.Method, path)
}

func match(pattern, segments []string) (params []string, ok bool) {
	if len(pattern) != len(segments) {
		return nil, false
	}
	for i, part := range pattern {
		switch {
		case part == "*" && segments[i] != "":
			params = append(params, segments[i])
		case part != segments[i]:
			return nil, false
		}
	}
	return params, true
}

// body reads a JSON body. Unknown members are ignored.
func (c *call) body(into interface{}) error {
	data, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, jsonMax))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return fail(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", jsonMax)
	}
	if err != nil {
		return badRequest("the body did not arrive: %v", err)
	}
	if len(data) == 0 {
		data = []byte("{}")
	}
	if err := json.Unmarshal(data, into); err != nil {
		return badRequest("the body is not valid: %v", err)
	}
	return nil
}

// path is the query parameter of that name, made absolute.
func (c *call) path(name string) (string, error) {
	value := c.r.URL.Query().Get(name)
	if value == "" {
		return "", badRequest("the query parameter %q is missing", name)
	}
	return c.absolute(value)
}

// absolute checks a path and makes it absolute: relative ones are below the working directory of the sandbox.
func (c *call) absolute(path string) (string, error) {
	if path == "" || len(path) > 4095 || strings.IndexByte(path, 0) >= 0 {
		return "", badRequest("a path must have 1 to 4095 bytes without NUL")
	}
	if path[0] == '/' {
		return path, nil
	}
	return strings.TrimSuffix(c.dir(), "/") + "/" + path, nil
}

// dir is the working directory of the sandbox.
func (c *call) dir() string {
	if c.set.Dir == "" {
		return "/"
	}
	return c.set.Dir
}

// user is who commands run as, and who owns new files.
func (c *call) user() (process.User, error) { return process.LookupUser("", c.set.User) }

func (c *call) send(status int, body interface{}) error {
	sendJSON(c.w, status, body)
	return nil
}

func (c *call) done(status int) error {
	c.w.WriteHeader(status)
	return nil
}

type object map[string]interface{}
