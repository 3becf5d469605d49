// Command agent is PID 1 of every sandbox. Started by the kernel it boots the machine and serves the host on a
// virtio-serial port; with -serve unix:/path it is an ordinary process that serves a socket, for development.
package main

import (
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"releap/guest/internal/agent"
	"releap/guest/internal/boot"
	"releap/guest/internal/fault"
	"releap/guest/internal/freeze"
	"releap/guest/internal/port"
	"releap/guest/internal/process"
)

const (
	portName = "releap.agent"
	// ready is the line on the console that the maker of a template waits for.
	ready = "releap: ready for template"
)

func main() {
	process.Launch()
	// A rare collection of a small heap: what the collector would do first after a restore is all new code.
	debug.SetGCPercent(400)
	if agent.IsWarmUpSteps() {
		end(agent.WarmUpSteps(os.Args[2]))
	}
	if os.Getpid() == 1 {
		console := func(text string) { os.Stderr.WriteString(text + "\n") }
		if err := runSandbox(console); err != nil {
			console("releap: cannot serve this sandbox: " + err.Error())
		}
		// PID 1 must not return: that would be a kernel panic. Reaping continues.
		select {}
	}
	if len(os.Args) == 3 && os.Args[1] == "-serve" && strings.HasPrefix(os.Args[2], "unix:") {
		end(serve(strings.TrimPrefix(os.Args[2], "unix:")))
	}
	if len(os.Args) == 3 && os.Args[1] == agent.WarmUpOption {
		end(agent.WarmUp(os.Args[2]))
	}
	os.Stdout.WriteString("releap guest agent " + agent.Version + "\nusage: agent -serve unix:/path\n")
	if len(os.Args) != 2 || os.Args[1] != "-version" {
		os.Exit(2)
	}
}

// end ends this process, with the error that it has ended with.
func end(err error) {
	if err != nil {
		os.Stderr.WriteString("agent: " + err.Error() + "\n")
		os.Exit(1)
	}
	os.Exit(0)
}

func runSandbox(console func(string)) error {
	defer fault.Guard(console, "boot")
	// A handled signal, unlike an ignored one, is not inherited by the processes we start. Unhandled, a `kill 1`
	// would end the Go runtime and with it the sandbox.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1,
		syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGPIPE, syscall.SIGPWR, syscall.SIGABRT)
	go func() {
		for range signals {
		}
	}()
	if err := boot.Mount(); err != nil {
		return err
	}
	openConsole()
	if err := checkTimers(); err != nil {
		// A kernel measures its timers once, at its boot: the host has to boot another one.
		return boot.Abandon("releap: this boot is of no use: " + err.Error())
	}
	boot.Tune()
	boot.LoadModules(console)
	boot.MakeDirs()
	if device := kernelOption("releap.system="); device != "" {
		if err := boot.MountSystem(device); err != nil {
			return err
		}
	}
	if err := boot.Loopback(); err != nil {
		console("releap: loopback: " + err.Error())
	}
	freezer, err := freeze.Open(boot.FreezerDir, console)
	if err != nil {
		return err
	}
	if option := kernelOption("releap.net="); option != "" {
		presetNetwork(option, console)
	}
	a := agent.New(freezer, true, nil, console)
	path, err := port.Find(portName, 20*time.Second)
	if err != nil {
		return err
	}
	p, err := port.Open(path)
	if err != nil {
		return err
	}
	boot.MakeResident()
	boot.PreferThread()
	console(ready)
	server := a.Server()
	for {
		// An end is the host hanging up: the next Read waits for the next host.
		if err := server.Serve(p); err != nil && err.Error() != "EOF" && err.Error() != "unexpected EOF" {
			console("releap: host connection: " + err.Error())
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// openConsole replaces whatever the kernel gave us by the console that now exists.
func openConsole() {
	fd, err := syscall.Open("/dev/console", syscall.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return
	}
	for target := 0; target <= 2; target++ {
		if fd != target {
			_ = syscall.Dup3(fd, target, 0)
		}
	}
	if fd > 2 {
		syscall.Close(fd)
	}
}

func kernelOption(prefix string) string {
	text, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return ""
	}
	for _, word := range strings.Fields(string(text)) {
		if strings.HasPrefix(word, prefix) {
			return word[len(prefix):]
		}
	}
	return ""
}

// checkTimers knows the true frequency of an emulated timer from the command line.
func checkTimers() error {
	hz, _ := strconv.ParseUint(kernelOption("releap.timer_hz="), 10, 40)
	return boot.CheckTimers(hz)
}

// presetNetwork sets the address up before the template is taken, when it is the same in every sandbox.
func presetNetwork(option string, console func(string)) {
	n, err := agent.NetworkOption(option)
	if err == nil {
		for i := 0; i < 200 && !n.Exists(); i++ { // its driver probes asynchronously
			time.Sleep(5 * time.Millisecond)
		}
		err = n.Apply()
	}
	if err != nil {
		console("releap: network of the command line: " + err.Error())
	}
}
