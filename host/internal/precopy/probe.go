package precopy

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
)

// Probe prints how Precopy learns on this machine what a process writes meanwhile, as Precopy does.
func Probe(args []string) error {
	if len(args) != 0 {
		return errors.New("usage: hostd probe-precopy")
	}
	how, err := probe()
	if err == nil {
		_, err = fmt.Println(how)
	}
	return err
}

// probe tries it with the stack of a process that does nothing.
func probe() (string, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child := exec.Command("cat")
	child.Stderr = os.Stderr
	input, err := child.StdinPipe()
	if err != nil {
		return "", err
	}
	output, err := child.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := child.Start(); err != nil {
		return "", err
	}
	// Its input ends with this process, too.
	defer func() {
		input.Close()
		_ = child.Wait()
	}()
	if _, err := fmt.Fprintln(input, "ready"); err != nil {
		return "", err
	}
	if _, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		return "", fmt.Errorf("the process to try it with: %w", err)
	}
	mappings, err := readMappings(child.Process.Pid)
	if err != nil {
		return "", err
	}
	for _, one := range mappings {
		if one.name != "[stack]" {
			continue
		}
		copier, err := newPreCopier(child.Process.Pid, one.start, one.end-one.start, os.DevNull)
		if err != nil {
			return "", err
		}
		return copier.begin()
	}
	return "", errors.New("the process to try it with has no stack")
}
