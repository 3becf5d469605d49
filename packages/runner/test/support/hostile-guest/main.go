// Hostile does inside a guest what a hostile tenant does: it reads probes as a JSON array from its standard input and prints the
// outcome of each as a JSON array of strings: "open" and what came back, "refused", "reset", "unreachable", "timeout" or an error.
package main

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

const patience = 30 * time.Second

type probe struct {
	Op string `json:"op"`
	// Where to: an address and port, or for frames nothing.
	To string `json:"to"`
	// What is sent, and in how many pieces.
	Hex   string `json:"hex"`
	Parts int    `json:"parts"`
	// Of a flood, a query or a raw packet.
	Count    int    `json:"count"`
	Most     int    `json:"most"`
	Name     string `json:"name"`
	Protocol int    `json:"protocol"`
}

func main() {
	var probes []probe
	if err := json.NewDecoder(os.Stdin).Decode(&probes); err != nil {
		panic(err)
	}
	outcomes := make([]string, len(probes))
	for index, one := range probes {
		outcomes[index] = run(one)
	}
	_ = json.NewEncoder(os.Stdout).Encode(outcomes)
}

func run(p probe) string {
	payload, err := hex.DecodeString(p.Hex)
	if err != nil {
		return err.Error()
	}
	switch p.Op {
	case "tcp":
		return stream(p.To, payload, p.Parts)
	case "udp":
		return datagram(p.To, payload)
	case "dns":
		return query(p.To, p.Name)
	case "dns-tcp":
		return queryTCP(p.To, p.Name)
	case "frame":
		return frame(payload)
	case "raw":
		return raw(p.To, p.Protocol, payload)
	case "flood":
		return flood(p.To, p.Count, p.Most)
	case "dns-flood":
		return queryFlood(p.To, p.Count)
	}
	return "no such operation: " + p.Op
}

func outcome(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "reset"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EACCES):
		return "unreachable"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	}
	return err.Error()
}

func stream(to string, payload []byte, parts int) string {
	connection, err := net.DialTimeout("tcp", to, patience)
	if err != nil {
		return outcome(err)
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(patience))
	size := len(payload)
	if parts > 1 {
		size = (len(payload) + parts - 1) / parts
	}
	for at := 0; at < len(payload); at += size {
		end := at + size
		if end > len(payload) {
			end = len(payload)
		}
		if _, err := connection.Write(payload[at:end]); err != nil {
			return outcome(err)
		}
		if parts > 1 {
			time.Sleep(2 * time.Millisecond)
		}
	}
	_ = connection.(*net.TCPConn).CloseWrite()
	back, err := io.ReadAll(connection)
	if err != nil {
		return outcome(err)
	}
	return fmt.Sprintf("open %d", len(back))
}

func datagram(to string, payload []byte) string {
	connection, err := net.Dial("udp", to)
	if err != nil {
		return outcome(err)
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(patience))
	if _, err := connection.Write(payload); err != nil {
		return outcome(err)
	}
	buffer := make([]byte, 2048)
	count, err := connection.Read(buffer)
	if err != nil {
		return outcome(err)
	}
	return fmt.Sprintf("open %d", count)
}

func question(name string) []byte {
	message := []byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	label := 0
	for index := 0; index <= len(name); index++ {
		if index == len(name) || name[index] == '.' {
			message = append(message, byte(index-label))
			message = append(message, name[label:index]...)
			label = index + 1
		}
	}
	return append(message, 0, 0, 1, 0, 1)
}

func answer(message []byte) string {
	if len(message) < 12 {
		return "short"
	}
	return fmt.Sprintf("rcode %d answers %d", message[3]&15, binary.BigEndian.Uint16(message[6:]))
}

func query(to, name string) string {
	connection, err := net.Dial("udp", to)
	if err != nil {
		return outcome(err)
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(patience))
	_, _ = connection.Write(question(name))
	buffer := make([]byte, 2048)
	count, err := connection.Read(buffer)
	if err != nil {
		return outcome(err)
	}
	return answer(buffer[:count])
}

func queryTCP(to, name string) string {
	connection, err := net.DialTimeout("tcp", to, patience)
	if err != nil {
		return outcome(err)
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(patience))
	message := question(name)
	_, _ = connection.Write(append([]byte{0, byte(len(message))}, message...))
	buffer := make([]byte, 2048)
	count, err := io.ReadAtLeast(connection, buffer, 14)
	if err != nil {
		return outcome(err)
	}
	return answer(buffer[2:count])
}

func htons(number uint16) uint16 { return number<<8 | number>>8 }

// frame sends bytes as they are on eth0.
func frame(bytes []byte) string {
	socket, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW, int(htons(3)))
	if err != nil {
		return err.Error()
	}
	defer syscall.Close(socket)
	device, err := net.InterfaceByName("eth0")
	if err != nil {
		return err.Error()
	}
	if err := syscall.Sendto(socket, bytes, 0, &syscall.SockaddrLinklayer{Protocol: htons(3), Ifindex: device.Index}); err != nil {
		return err.Error()
	}
	return "sent"
}

func raw(to string, protocol int, payload []byte) string {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW, protocol)
	if err != nil {
		return err.Error()
	}
	defer syscall.Close(socket)
	var target syscall.SockaddrInet4
	copy(target.Addr[:], net.ParseIP(to).To4())
	if err := syscall.Sendto(socket, payload, 0, &target); err != nil {
		return err.Error()
	}
	return "sent"
}

// queryFlood sends queries for names of its own as fast as it can, and reads no answers.
func queryFlood(to string, count int) string {
	connection, err := net.Dial("udp", to)
	if err != nil {
		return outcome(err)
	}
	defer connection.Close()
	for index := 0; index < count; index++ {
		_, _ = connection.Write(question(fmt.Sprintf("n%d.flood.evil", index)))
	}
	return "sent"
}

// flood opens connections that say nothing, waits until no more than `most` of them are open, and tells how many those are.
func flood(to string, count, most int) string {
	connections := make(chan net.Conn, count)
	for index := 0; index < count; index++ {
		go func() {
			connection, err := net.DialTimeout("tcp", to, patience)
			if err != nil {
				connection = nil
			}
			connections <- connection
		}()
	}
	var made []net.Conn
	for index := 0; index < count; index++ {
		if connection := <-connections; connection != nil {
			made = append(made, connection)
			defer connection.Close()
		}
	}
	// The proxy resets those that are too many when it has accepted them, some time after their handshake.
	for end := time.Now().Add(patience); ; {
		var open []net.Conn
		for _, connection := range made {
			_ = connection.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if _, err := connection.Read(make([]byte, 1)); err != nil && outcome(err) == "timeout" {
				open = append(open, connection)
			}
		}
		made = open
		if len(made) <= most || time.Now().After(end) {
			return fmt.Sprintf("open %d", len(made))
		}
	}
}
