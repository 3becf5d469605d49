// Https-client reads requests as a JSON array from its standard input and prints the outcome of each as a JSON array of strings: the
// version of HTTP, the status and what came back, or the error. All have the header X-Key of their field `key`. It trusts what
// SSL_CERT_FILE names, speaks HTTP/2 where the server does, and follows redirects.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

type request struct {
	URL string `json:"url"`
	Key string `json:"key"`
	// Another authority than that of the URL.
	Host string `json:"host"`
	// Sent in pieces of so many bytes, without a length; compressed if Gzip is set.
	Body  string `json:"body"`
	Piece int    `json:"piece"`
	Gzip  bool   `json:"gzip"`
}

func main() {
	var requests []request
	if err := json.NewDecoder(os.Stdin).Decode(&requests); err != nil {
		panic(err)
	}
	client := http.Client{Timeout: time.Minute}
	outcomes := make([]string, len(requests))
	for index, one := range requests {
		outcomes[index] = send(&client, one)
	}
	_ = json.NewEncoder(os.Stdout).Encode(outcomes)
}

func send(client *http.Client, r request) string {
	method := http.MethodGet
	var body io.Reader
	if r.Body != "" {
		method, body = http.MethodPost, pieces([]byte(r.Body), r.Piece)
		if r.Gzip {
			var packed bytes.Buffer
			writer := gzip.NewWriter(&packed)
			_, _ = writer.Write([]byte(r.Body))
			_ = writer.Close()
			body = pieces(packed.Bytes(), r.Piece)
		}
	}
	outgoing, err := http.NewRequest(method, r.URL, body)
	if err != nil {
		return err.Error()
	}
	outgoing.Header.Set("X-Key", r.Key)
	if r.Host != "" {
		outgoing.Host = r.Host
	}
	if r.Gzip {
		outgoing.Header.Set("Content-Encoding", "gzip")
	}
	response, err := client.Do(outgoing)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s %d %s", response.Proto, response.StatusCode, text)
}

// pieces passes so many bytes on at a time, a moment apart.
func pieces(data []byte, size int) io.Reader {
	reader, writer := io.Pipe()
	go func() {
		for len(data) > 0 {
			if size <= 0 || size > len(data) {
				size = len(data)
			}
			if _, err := writer.Write(data[:size]); err != nil {
				return
			}
			data = data[size:]
			time.Sleep(2 * time.Millisecond)
		}
		_ = writer.Close()
	}()
	return reader
}
