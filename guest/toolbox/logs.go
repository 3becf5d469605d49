package main

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/gorilla/websocket"
)

// versionHeader names the version of a client SDK. Older ones than logsAsJSON expect plain text.
const versionHeader = "X-Daytona-SDK-Version"

var logsAsJSON = [2]int{0, 167}

// logs answers what is kept of a command's output, or follows it over a WebSocket until the command ends.
func logs(c *call, command *sessionCommand) error {
	if c.r.URL.Query().Get("follow") == "true" || websocket.IsWebSocketUpgrade(c.r) {
		return follow(c, command.output)
	}
	command.output.mu.Lock()
	truncated := command.output.dropped
	command.output.mu.Unlock()
	if truncated {
		c.w.Header().Set(truncatedHeader, "true")
	}
	if wantsText(c.r.Header.Get(versionHeader)) {
		c.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = c.w.Write([]byte(command.output.text(0)))
		return nil
	}
	return c.send(http.StatusOK, object{
		"output": command.output.text(0), "stdout": command.output.text(stdout), "stderr": command.output.text(stderr),
	})
}

func wantsText(version string) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	if err1 != nil || err2 != nil {
		return false
	}
	return major < logsAsJSON[0] || (major == logsAsJSON[0] && minor < logsAsJSON[1])
}

// follow sends the output in binary messages. Three equal bytes before the data say which stream it is of: 1 or 2.
func follow(c *call, from *output) error {
	s, err := c.upgrade()
	if err != nil {
		return err
	}
	go s.receive(func(int, []byte) error { return nil })
	r := from.read()
	defer r.close()
	for {
		chunks, ok := r.take(s.gone)
		if !ok {
			s.finish(websocket.CloseNormalClosure, "")
			return errAnswered
		}
		if len(chunks) == 0 {
			return errAnswered // the client is gone
		}
		for _, one := range chunks {
			frame := append([]byte{one.stream, one.stream, one.stream}, one.data...)
			if s.send(websocket.BinaryMessage, frame) != nil {
				return errAnswered
			}
		}
	}
}
