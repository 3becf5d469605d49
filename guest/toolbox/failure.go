package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"syscall"

	"releap/guest/internal/fault"
)

// failure is an error with the status that the client gets.
type failure struct {
	status int
	text   string
}

func (f *failure) Error() string { return f.text }

func fail(status int, format string, args ...interface{}) error {
	return &failure{status, fmt.Sprintf(format, args...)}
}

func badRequest(format string, args ...interface{}) error {
	return fail(http.StatusBadRequest, format, args...)
}

var statuses = map[string]int{
	fault.NotFound: http.StatusNotFound, fault.Exists: http.StatusConflict, fault.NotEmpty: http.StatusConflict,
	fault.IsDirectory: http.StatusBadRequest, fault.NotDir: http.StatusBadRequest, fault.Invalid: http.StatusBadRequest,
	fault.Permission: http.StatusForbidden, fault.NoSpace: http.StatusInsufficientStorage,
	fault.TooLarge: http.StatusRequestEntityTooLarge,
}

// statusOf an error, and its text.
func statusOf(err error) (int, string) {
	var own *failure
	if errors.As(err, &own) {
		return own.status, own.text
	}
	if status, ok := statuses[fault.Code(err)]; ok {
		return status, err.Error()
	}
	return http.StatusInternalServerError, err.Error()
}

// atPath gives an error of the file system the path that the client knows.
func atPath(path string, err error) error {
	var own *failure
	if err == nil || errors.As(err, &own) {
		return err
	}
	var errno syscall.Errno
	var text string
	switch {
	case errors.Is(err, fs.ErrNotExist):
		text = "not found"
	case errors.As(err, &errno):
		text = errno.Error()
	default:
		text = err.Error()
	}
	status, _ := statusOf(err)
	return &failure{status, path + ": " + text}
}

// errorBody is the form of every error: `message` is what SDKs of the compatible protocol show.
type errorBody struct {
	Error      string `json:"error"`
	Message    string `json:"message"`
	StatusCode int    `json:"statusCode"`
}

func describe(err error) errorBody {
	status, text := statusOf(err)
	text = strings.ToValidUTF8(text, "\uFFFD")
	return errorBody{text, text, status}
}

func sendError(w http.ResponseWriter, err error) {
	body := describe(err)
	sendJSON(w, body.StatusCode, body)
}

func sendJSON(w http.ResponseWriter, status int, body interface{}) {
	data, err := json.Marshal(body)
	if err != nil {
		status, data = http.StatusInternalServerError, []byte(`{"error":"the answer has no JSON form"}`)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	w.WriteHeader(status)
	_, _ = w.Write(data)
}

// exists tells whether something has that name, a dangling link included.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
