// A server for sandboxes and for the host: a short answer at /, zeros at /stream/<MiB>, and WebSockets that stay idle at /ws.
package main

import (
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
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
	http.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		// RFC 6455 section 4.2.2.
		digest := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
			base64.StdEncoding.EncodeToString(digest[:]))
		io.Copy(io.Discard, conn)
	})
	address := ":8080"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	panic(http.ListenAndServe(address, nil))
}
