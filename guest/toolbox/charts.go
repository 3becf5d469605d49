package main

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// chartsBytes of one run are kept, with their images; later charts are left out.
	chartsBytes = 16 << 20
	chartsOf    = 100
	// chartsModule is what Python code imports as its matplotlib backend.
	chartsModule = "releap_charts"
)

//go:embed releap_charts.py
var chartsCode string

// charts receives the figures that Python code shows with matplotlib.
type charts struct {
	file   *os.File
	remove func()
}

// collectCharts makes a command's matplotlib write its figures to a file that only the command and this process have. It is nil
// when the environment chooses a backend, and when there is no space for it: the code then runs without charts.
func (c *call) collectCharts(cmd *exec.Cmd) *charts {
	if valueOf(cmd.Env, "MPLBACKEND") != "" {
		return nil
	}
	module, remove, err := c.temporaryFile(chartsModule+".py", chartsCode)
	if err != nil {
		return nil
	}
	fd, err := unix.MemfdCreate("charts", unix.MFD_CLOEXEC)
	if err != nil {
		remove()
		return nil
	}
	all := &charts{os.NewFile(uintptr(fd), "charts"), remove}
	search := path.Dir(module)
	if own := valueOf(cmd.Env, "PYTHONPATH"); own != "" {
		search += ":" + own
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, all.file)
	cmd.Env = append(cmd.Env,
		"PYTHONPATH="+search, "MPLBACKEND=module://"+chartsModule,
		"RELEAP_CHARTS_FD="+strconv.Itoa(2+len(cmd.ExtraFiles)), "RELEAP_CHARTS_MAX="+strconv.Itoa(chartsBytes))
	return all
}

// valueOf a variable: the last one counts, as for os/exec.
func valueOf(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if strings.HasPrefix(env[i], name+"=") {
			return env[i][len(name)+1:]
		}
	}
	return ""
}

// read what the code has left. Code may write anything: lines that are no JSON objects are left out.
func (all *charts) read() []json.RawMessage {
	if all == nil {
		return nil
	}
	lines := bufio.NewReader(io.NewSectionReader(all.file, 0, chartsBytes))
	var found []json.RawMessage
	for len(found) < chartsOf {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		if bytes.HasPrefix(line, []byte("{")) && json.Valid(line) {
			found = append(found, json.RawMessage(bytes.TrimSpace(line)))
		}
	}
	return found
}

func (all *charts) close() {
	if all != nil {
		all.file.Close()
		all.remove()
	}
}
