// Flood sends UDP packets as fast as it can: flood HOST SECONDS PACKETS, for at least so long, and so many. In turn a question, and
// twelve bytes that announce thousands of records. It prints how many it has sent.
package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

func main() {
	seconds, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	least, err := strconv.Atoi(os.Args[3])
	if err != nil {
		panic(err)
	}
	packets := [][]byte{
		append([]byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, "\x05flood\x07example\x00\x00\x01\x00\x01"...),
		{0, 7, 1, 0, 255, 255, 255, 255, 255, 255, 255, 255},
	}
	connection, err := net.Dial("udp", os.Args[1])
	if err != nil {
		panic(err)
	}
	sent := 0
	for end := time.Now().Add(time.Duration(seconds) * time.Second); sent < least || time.Now().Before(end); {
		for burst := 0; burst < 100; burst++ {
			_, _ = connection.Write(packets[sent%len(packets)])
			sent++
		}
	}
	fmt.Println(sent)
}
