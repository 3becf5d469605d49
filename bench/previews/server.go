// A server for sandboxes: a short answer at /, and zeros at /stream/<MiB>.
package main

import (
	"net/http"
	"strconv"
	"strings"
)

var block = make([]byte, 1<<20)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte("hello from a sandbox\n"))
	})
	http.HandleFunc("/stream/", func(w http.ResponseWriter, r *http.Request) {
		mib, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/stream/"))
		w.Header().Set("Content-Length", strconv.Itoa(mib<<20))
		for ; mib > 0; mib-- {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	panic(http.ListenAndServe(":8080", nil))
}
