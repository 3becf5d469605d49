// As the server part of an editor's remote mode: frames of a length and that many bytes over standard input and output, which
// come back; and the same over a port of the loopback address and a Unix socket, whose lines come back.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
)

func main() {
	port, path := os.Args[1], os.Args[2]
	_ = os.Remove(path)
	tcp, err := net.Listen("tcp", "127.0.0.1:"+port)
	exitOn(err)
	unix, err := net.Listen("unix", path)
	exitOn(err)
	for _, listener := range []net.Listener{tcp, unix} {
		go serve(listener)
	}
	fmt.Fprintln(os.Stderr, "listening")
	// Until the client closes its end.
	in, out := bufio.NewReader(os.Stdin), bufio.NewWriter(os.Stdout)
	for {
		var length uint32
		if err := binary.Read(in, binary.BigEndian, &length); err == io.EOF {
			return
		} else {
			exitOn(err)
		}
		exitOn(binary.Write(out, binary.BigEndian, length))
		_, err := io.CopyN(out, in, int64(length))
		exitOn(err)
		exitOn(out.Flush())
	}
}

func serve(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		exitOn(err)
		go func() {
			defer connection.Close()
			lines := bufio.NewScanner(connection)
			for lines.Scan() {
				fmt.Fprintf(connection, "%s over %s\n", lines.Text(), listener.Addr().Network())
			}
		}()
	}
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
