package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	defaultTimeout = 360 * time.Second
	timeoutMax     = 86_400 // seconds
	// killGrace is how long a command has to end after SIGTERM.
	killGrace = 2 * time.Second
)

// ended is what a command that has ended left.
type ended struct {
	code     int
	output   *output
	timedOut bool
}

// run a command to its end, its timeout, or until the client is gone. Background processes that it leaves run on, and what they
// write is dropped. Zero is no timeout. Merged, both outputs are one, in the order in which they are written.
func run(ctx context.Context, cmd *exec.Cmd, stdin string, timeout time.Duration, merged bool) (*ended, error) {
	result := &ended{output: newOutput(outputMax)}
	pipes := &pipes{}
	defer pipes.close()
	var writers []*os.File
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	for _, one := range []struct {
		stream byte
		target *io.Writer
	}{{stdout, &cmd.Stdout}, {stderr, &cmd.Stderr}} {
		if merged && one.stream == stderr {
			cmd.Stderr = cmd.Stdout
			continue
		}
		reader, writer, err := os.Pipe()
		if err != nil {
			closeAll(writers)
			return nil, err
		}
		writers = append(writers, writer)
		*one.target = writer
		pipe := &outputPipe{file: reader, stream: one.stream, into: result.output, paused: make(chan struct{})}
		pipes.readers = append(pipes.readers, pipe)
		go pipe.pump()
	}
	err := cmd.Start()
	closeAll(writers)
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	var expired <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-done:
	case <-expired:
		result.timedOut = true
		endSoftly(cmd.Process.Pid, done)
	case <-ctx.Done():
		endSoftly(cmd.Process.Pid, done)
	}
	pipes.drain()
	result.output.end()
	if state, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
		result.code = exitCode(state)
	}
	return result, ctx.Err()
}

func closeAll(files []*os.File) {
	for _, file := range files {
		file.Close()
	}
}

// endSoftly ends a process group: SIGTERM, and SIGKILL after a grace period.
func endSoftly(pid int, done <-chan struct{}) {
	_ = syscall.Kill(-pid, syscall.SIGTERM)
	select {
	case <-done:
	case <-time.After(killGrace):
	}
	killSession(pid)
	<-done
}

// seconds of a request: none is the default, 0 too.
func seconds(given *float64) (time.Duration, error) {
	if given == nil || *given == 0 {
		return defaultTimeout, nil
	}
	if *given < 0 || *given > timeoutMax {
		return 0, badRequest("timeout must be 0 to %d seconds", timeoutMax)
	}
	return time.Duration(*given * float64(time.Second)), nil
}

// interpreters by language, with what each needs before the code.
var interpreters = map[string][][]string{
	"python":     {{"python3", "-u", "-"}, {"python", "-u", "-"}},
	"javascript": {{"node", "-"}, {"bun", "run", "-"}, {"deno", "run", "-A", "-"}},
	"typescript": {{"tsx", ""}, {"ts-node", ""}, {"bun", "run", ""}, {"deno", "run", "-A", ""}, {"node", "--experimental-strip-types", "--no-warnings", ""}},
}

// codeRun runs code with the first interpreter of its language that the image has. Code is its standard input, except TypeScript,
// which is a file.
func codeRun(c *call) error {
	var body struct {
		Code     string            `json:"code"`
		Language string            `json:"language"`
		Argv     []string          `json:"argv"`
		Envs     map[string]string `json:"envs"`
		Timeout  *float64          `json:"timeout"`
	}
	if err := c.body(&body); err != nil {
		return err
	}
	candidates := interpreters[body.Language]
	if candidates == nil {
		return badRequest("language %q is not supported: python, javascript or typescript", body.Language)
	}
	if body.Code == "" {
		return badRequest("code is missing")
	}
	timeout, err := seconds(body.Timeout)
	if err != nil {
		return err
	}
	argv, err := c.firstInterpreter(body.Language, candidates)
	if err != nil {
		return err
	}
	stdin := body.Code
	if argv[len(argv)-1] == "" {
		file, remove, err := c.temporaryFile("main.ts", body.Code)
		if err != nil {
			return err
		}
		defer remove()
		argv[len(argv)-1], stdin = file, ""
	}
	for _, argument := range body.Argv {
		if strings.IndexByte(argument, 0) >= 0 {
			return badRequest("argv must not have NUL")
		}
	}
	cmd, err := c.command("", body.Envs, append(argv, body.Argv...)...)
	if err != nil {
		return err
	}
	var figures *charts
	if body.Language == "python" {
		figures = c.collectCharts(cmd)
		defer figures.close()
	}
	result, err := run(c.r.Context(), cmd, stdin, timeout, true)
	if err != nil {
		return err
	}
	answer := object{"exitCode": result.code, "result": result.output.text(0)}
	if result.output.dropped {
		answer["truncated"] = true
	}
	if shown := figures.read(); len(shown) > 0 {
		answer["artifacts"] = object{"charts": shown}
	}
	if result.timedOut {
		told := describe(fail(http.StatusRequestTimeout, "the code was ended: it ran longer than its timeout of %v", timeout))
		answer["error"], answer["message"], answer["statusCode"] = told.Error, told.Message, told.StatusCode
		return c.send(http.StatusRequestTimeout, answer)
	}
	return c.send(http.StatusOK, answer)
}

func (c *call) firstInterpreter(language string, candidates [][]string) ([]string, error) {
	names := make([]string, 0, len(candidates))
	for _, candidate := range candidates {
		if path, err := c.firstProgram(candidate[0]); err == nil {
			return append([]string{path}, candidate[1:]...), nil
		}
		names = append(names, candidate[0])
	}
	return nil, fail(http.StatusNotImplemented, "POST /process/code-run: the image has no interpreter for %s: %s", language, strings.Join(names, " or "))
}

// temporaryFile writes a file that only the sandbox's user may read, in a folder of its own.
func (c *call) temporaryFile(name, content string) (path string, remove func(), err error) {
	user, err := c.user()
	if err != nil {
		return "", nil, err
	}
	folder, err := makePipeFolder(user)
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(folder) }
	path = folder + "/" + name
	if err = writeFile(path, user, bytes.NewReader([]byte(content))); err != nil {
		remove()
		return "", nil, err
	}
	return path, remove, nil
}
