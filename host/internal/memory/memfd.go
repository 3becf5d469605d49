// Package memory makes guests' memory files and copies them.
package memory

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	chunkBytes = 1 << 20
	// Of one order: a path and a verb.
	orderMaxBytes = 8192
	sealAll       = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	sealDeadline  = 30 * time.Second
	sealPause     = 20 * time.Millisecond
)

var pageBytes = os.Getpagesize()

// Serve creates a memfd of the given size, prints "<descriptor>\n" and keeps it open until standard input ends. The parent opens
// it as /proc/PID/fd/DESCRIPTOR.
//
// For "fill SOURCE\n" it copies the data of that sparse file to where the memory has none yet and prints "filled\n". For
// "seal\n" it makes the memory immutable for every process that has it and prints "sealed\n".
func Serve(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: hostd memfd BYTES")
	}
	bytes, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil || bytes <= 0 || bytes%int64(pageBytes) != 0 {
		return fmt.Errorf("BYTES must be a positive multiple of %d, not %q", pageBytes, args[0])
	}
	fd, err := unix.MemfdCreate("releap-memory", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	memory := os.NewFile(uintptr(fd), "memfd")
	if err := memory.Truncate(bytes); err != nil {
		return fmt.Errorf("cannot have %d bytes of memory: %w", bytes, err)
	}
	fmt.Println(fd)
	orders := bufio.NewScanner(os.Stdin)
	orders.Buffer(make([]byte, 0, orderMaxBytes), orderMaxBytes)
	for orders.Scan() {
		order := orders.Text()
		if strings.HasPrefix(order, "fill ") {
			err = Fill(memory, order[len("fill "):])
			order = "fill"
		} else if order == "seal" {
			err = seal(memory)
		} else {
			err = errors.New("unknown order")
		}
		if err != nil {
			return fmt.Errorf("cannot %s the memory: %w", order, err)
		}
		fmt.Println(order + "ed")
	}
	return orders.Err()
}

// seal makes memory immutable. The kernel refuses with EBUSY while anything else refers to one of its pages, after it has waited for
// 150 ms (memfd_wait_for_pins in mm/memfd.c): on a busy host, pages that were just written stay longer than that in the batches that
// each processor adds to the LRU lists.
func seal(memory *os.File) error {
	for end := time.Now().Add(sealDeadline); ; time.Sleep(sealPause) {
		_, err := unix.FcntlInt(memory.Fd(), unix.F_ADD_SEALS, sealAll)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}
