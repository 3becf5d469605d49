package agent

import (
	"os"
	"runtime"
	"syscall"
	"time"

	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
)

// Arguments of the agent's program; a configure request (JSON) follows each.
const (
	WarmUpOption      = "-warm-up"
	warmUpStepsOption = "-warm-up-steps"
	warmUpPatience    = 10 * time.Second
	warmUpNamespaces  = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC
	warmUpOwnNetwork  = syscall.CLONE_NEWNET
)

// WarmUp configures a sandbox before there is a request for one, in a machine that waits for it: in its own namespaces, with a
// scratch disk that is exchanged afterwards, and up to the end of its entrypoint. An emulator has translated all of that
// code before a client waits for it, and the kernel has the root image's pages in its cache. What stays is the root image,
// which is mounted where configure looks for it. Run as a child of the agent.
func WarmUp(config string) error {
	p, err := parseConfig(config)
	if err != nil {
		return err
	}
	if p.root == nil {
		return fault.New(fault.Invalid, "a warm-up needs disks")
	}
	if err := p.root.MountImage(); err != nil {
		return err
	}
	steps, err := os.StartProcess("/proc/self/exe", []string{os.Args[0], warmUpStepsOption, config}, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		// The kernel ends whatever is left in a process namespace together with its first process.
		Sys: &syscall.SysProcAttr{Cloneflags: warmUpNamespaces},
	})
	if err != nil {
		return err
	}
	state, err := steps.Wait()
	if err != nil {
		return err
	}
	if !state.Success() {
		return fault.New(fault.Internal, "the steps of the warm-up: "+state.String())
	}
	return p.scratch.AwaitRelease()
}

// IsWarmUpSteps tells whether this process was started by WarmUp. It is the first one of its namespace, as PID 1 is.
func IsWarmUpSteps() bool { return len(os.Args) == 3 && os.Args[1] == warmUpStepsOption }

// WarmUpSteps is the child of WarmUp.
func WarmUpSteps(config string) error {
	// A network namespace belongs to a thread, and processes are started in that of the thread that forks.
	runtime.LockOSThread()
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	p, err := parseConfig(config)
	if err != nil {
		return err
	}
	p.root.Mounted = true
	if p.network != nil {
		p.network.MarkApplied()
	}
	a := New(nil, true, nil, func(string) {})
	if _, err := a.apply(&p, nil, &stopwatch{last: time.Now()}); err != nil {
		return err
	}
	if p.entry == nil {
		return nil
	}
	// The image's program is not the sandbox's yet, and gets no network.
	if err := syscall.Unshare(warmUpOwnNetwork); err != nil {
		return err
	}
	a.entry.Start(*p.entry)
	process := a.entry.Process()
	if process == nil { // an image without that program
		return nil
	}
	select {
	case <-process.Done():
	case <-time.After(warmUpPatience):
	}
	return nil
}

func parseConfig(text string) (plan, error) {
	v, err := jsonlite.Parse([]byte(text))
	if err != nil {
		return plan{}, err
	}
	return parsePlan(v)
}
