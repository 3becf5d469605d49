package memory

import (
	"errors"
	"fmt"
	"os"
	"strconv"
)

// Apply writes the data of a sparse file into the memory of process PID, which lies at ADDRESS for BYTES bytes: that of a guest
// that has not run yet. The process maps another file there privately, which does not change.
func Apply(args []string) error {
	if len(args) != 4 {
		return errors.New("usage: hostd apply SOURCE PID ADDRESS BYTES")
	}
	var numbers [3]int64
	for index, arg := range args[1:] {
		value, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || value < 0 {
			return fmt.Errorf("not a number: %q", arg)
		}
		numbers[index] = value
	}
	pid, address, size := numbers[0], numbers[1], numbers[2]
	source, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer source.Close()
	if info, err := source.Stat(); err != nil || info.Size() != size {
		return fmt.Errorf("%s is not of a guest with %d bytes of memory (%v)", args[0], size, err)
	}
	target, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer target.Close()
	return EachExtent(source, func(start, end int64) error {
		return eachChunk(source, start, end, func(chunk []byte, at int64) error {
			_, err := target.WriteAt(chunk, address+at)
			return err
		})
	})
}
