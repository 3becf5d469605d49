// Https-client requests each URL of its arguments with the header X-Key, and prints a line for each: the version of HTTP and what
// came back, or the error. It trusts what SSL_CERT_FILE names.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

func main() {
	client := http.Client{Timeout: time.Minute}
	for _, url := range os.Args[2:] {
		fmt.Println(get(&client, url, os.Args[1]))
	}
}

func get(client *http.Client, url, key string) string {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err.Error()
	}
	request.Header.Set("X-Key", key)
	response, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s %s", response.Proto, body)
}
