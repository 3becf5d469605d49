package precopy

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// mapping is a line of /proc/PID/maps (proc_pid_maps(5)).
type mapping struct {
	start, end uintptr
	name       string
	// It has no file.
	isAnonymous bool
}

func readMappings(pid int) ([]mapping, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return parseMappings(file)
}

// anonymousRegions gives the mappings of a process that have no file.
func anonymousRegions(pid int) ([]region, error) {
	mappings, err := readMappings(pid)
	var found []region
	for _, one := range mappings {
		if one.isAnonymous {
			found = append(found, region{start: one.start, end: one.end})
		}
	}
	return found, err
}

func parseMappings(text io.Reader) ([]mapping, error) {
	var mappings []mapping
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		one, err := parseMapping(lines.Text())
		if err != nil {
			return nil, err
		}
		mappings = append(mappings, one)
	}
	return mappings, lines.Err()
}

func parseMapping(line string) (mapping, error) {
	fields := strings.Fields(line)
	malformed := fmt.Errorf("malformed mapping %.100q", line)
	if len(fields) < 5 {
		return mapping{}, malformed
	}
	bounds := strings.SplitN(fields[0], "-", 2)
	if len(bounds) != 2 {
		return mapping{}, malformed
	}
	start, startErr := strconv.ParseUint(bounds[0], 16, 64)
	end, endErr := strconv.ParseUint(bounds[1], 16, 64)
	if startErr != nil || endErr != nil || end < start {
		return mapping{}, malformed
	}
	name := ""
	if len(fields) > 5 {
		name = strings.Join(fields[5:], " ")
	}
	return mapping{start: uintptr(start), end: uintptr(end), name: name, isAnonymous: fields[4] == "0"}, nil
}
