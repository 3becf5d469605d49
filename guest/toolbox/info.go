package main

import (
	"net/http"
	"os"
	"sort"
	"strconv"
	"strings"
)

// listening is the state of a socket that accepts connections, in /proc/net/tcp.
const listening = "0A"

func (t *toolbox) addInfo() {
	t.add("GET", "version", func(c *call) error { return c.send(http.StatusOK, object{"version": version}) })
	t.add("GET", "work-dir", func(c *call) error { return c.send(http.StatusOK, object{"dir": c.dir()}) })
	t.add("GET", "user-home-dir", func(c *call) error {
		user, err := c.user()
		if err != nil {
			return err
		}
		home := user.Home
		// The variable is what a program of the user goes by.
		if value := c.set.Env["HOME"]; value != "" {
			home = value
		}
		return c.send(http.StatusOK, object{"dir": home})
	})
	t.add("GET", "port", func(c *call) error {
		ports := []int{}
		for port := range listeningPorts() {
			ports = append(ports, port)
		}
		sort.Ints(ports)
		return c.send(http.StatusOK, object{"ports": ports})
	})
	t.add("GET", "port/*/in-use", func(c *call) error {
		port, err := strconv.Atoi(c.params[0])
		if err != nil || port < 1 || port > 65535 {
			return badRequest("port %q is not allowed; it must be 1 to 65535", c.params[0])
		}
		return c.send(http.StatusOK, object{"isInUse": listeningPorts()[port]})
	})
}

// listeningPorts are the TCP ports on which something in the sandbox listens, on any address.
func listeningPorts() map[int]bool {
	ports := map[int]bool{}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, _ := os.ReadFile(file)
		for _, line := range strings.Split(string(text), "\n") {
			fields := strings.Fields(line)
			if len(fields) < 4 || fields[3] != listening {
				continue
			}
			_, port, _ := strings.Cut(fields[1], ":")
			if number, err := strconv.ParseUint(port, 16, 16); err == nil {
				ports[int(number)] = true
			}
		}
	}
	return ports
}
