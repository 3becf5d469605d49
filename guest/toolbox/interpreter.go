package main

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
)

const (
	contextsMax     = 32
	defaultContext  = "default"
	startPatience   = 10 * time.Second // for the client's first message
	interruptGrace  = 5 * time.Second
	closeOfTimeout  = 4008
	cellTimeout     = 600 * time.Second
	answerLineMax   = 8 << 20
	interpreterName = "python"
)

//go:embed interpreter.py
var interpreterProgram string

// contexts are Python processes whose variables last from one request to the next.
type contexts struct {
	*registry[*pythonContext]
	makingDefault sync.Mutex
}

type contextInfo struct {
	ID        string `json:"id"`
	Cwd       string `json:"cwd"`
	Language  string `json:"language"`
	Active    bool   `json:"active"`
	CreatedAt string `json:"createdAt"`
}

type pythonContext struct {
	info contextInfo
	turn chan struct{} // holds one token: the request that takes it runs its code

	// Of the process that runs; with the turn only.
	cmd      *exec.Cmd
	requests *os.File
	answers  chan cellAnswer
	pipes    *pipes
	done     chan struct{}
	number   int
}

type cellRequest struct {
	Code      string            `json:"code"`
	ContextID string            `json:"contextId,omitempty"`
	Envs      map[string]string `json:"envs,omitempty"`
	Timeout   *float64          `json:"timeout,omitempty"`
	Number    int               `json:"number"`
}

type cellAnswer struct {
	Number      int    `json:"number"`
	Interrupted bool   `json:"interrupted"`
	Name        string `json:"name"`
	Value       string `json:"value"`
	Traceback   string `json:"traceback"`
}

func (t *toolbox) addInterpreters() {
	all := &contexts{registry: newRegistry[*pythonContext]("context", contextsMax)}
	t.add("POST", "process/code-run", codeRun)
	t.add("GET", "process/interpreter/execute", all.execute)
	t.add("POST", "process/interpreter/context", all.create)
	t.add("GET", "process/interpreter/context", all.list)
	t.add("DELETE", "process/interpreter/context/*", all.with(all.delete))
}

func (all *contexts) create(c *call) error {
	var body struct {
		Cwd      string `json:"cwd"`
		Language string `json:"language"`
	}
	if err := c.body(&body); err != nil {
		return err
	}
	if body.Language != "" && body.Language != interpreterName {
		return fail(http.StatusNotImplemented, "POST /process/interpreter/context: the language %q is not supported, only %s", body.Language, interpreterName)
	}
	id := newID()
	one, err := all.add(id, func() (*pythonContext, error) { return c.newContext(id, body.Cwd) })
	if err != nil {
		return err
	}
	return c.send(http.StatusOK, one.info)
}

func (all *contexts) list(c *call) error {
	infos := []contextInfo{}
	for _, one := range all.all() {
		infos = append(infos, one.info)
	}
	return c.send(http.StatusOK, object{"contexts": infos})
}

func (all *contexts) delete(c *call, one *pythonContext) error {
	all.remove(one.info.ID, one)
	one.end()
	return c.send(http.StatusOK, object{"message": "deleted"})
}

// of finds a context; the default one is made when it is first used.
func (all *contexts) of(c *call, id string) (*pythonContext, error) {
	if id != "" && id != defaultContext {
		return all.find(id)
	}
	all.makingDefault.Lock()
	defer all.makingDefault.Unlock()
	if one, err := all.find(defaultContext); err == nil {
		return one, nil
	}
	return all.add(defaultContext, func() (*pythonContext, error) { return c.newContext(defaultContext, "") })
}

func (c *call) newContext(id, cwd string) (*pythonContext, error) {
	path, err := c.firstProgram("python3", "python")
	if err != nil {
		return nil, fail(http.StatusNotImplemented, "%s %s: the image has no python3", c.r.Method, c.r.URL.Path)
	}
	cmd, err := c.command(cwd, nil, path, "-u", "-c", interpreterProgram)
	if err != nil {
		return nil, err
	}
	one := &pythonContext{
		info: contextInfo{id, cmd.Dir, interpreterName, true, time.Now().UTC().Format(time.RFC3339Nano)},
		turn: make(chan struct{}, 1), cmd: cmd,
	}
	if err := one.start(); err != nil {
		return nil, err
	}
	one.turn <- struct{}{}
	return one, nil
}

// start the process. Its outputs are read by the request that runs code.
func (one *pythonContext) start() error {
	ask, requests, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ask.Close()
	answers, answer, err := os.Pipe()
	if err != nil {
		requests.Close()
		return err
	}
	defer answer.Close()
	one.cmd.ExtraFiles = []*os.File{ask, answer}
	one.pipes = &pipes{}
	for _, stream := range []byte{stdout, stderr} {
		reader, writer, err := os.Pipe()
		if err != nil {
			one.pipes.closeReaders()
			requests.Close()
			answers.Close()
			return err
		}
		defer writer.Close()
		if stream == stdout {
			one.cmd.Stdout = writer
		} else {
			one.cmd.Stderr = writer
		}
		one.pipes.readers = append(one.pipes.readers, &outputPipe{file: reader, stream: stream})
	}
	if err := one.cmd.Start(); err != nil {
		one.pipes.closeReaders()
		requests.Close()
		answers.Close()
		return fail(http.StatusNotImplemented, "python3 does not start: %v", err)
	}
	one.requests, one.answers, one.done = requests, make(chan cellAnswer, 4), make(chan struct{})
	go one.listen(answers, one.answers)
	go func() {
		_ = one.cmd.Wait()
		close(one.done)
	}()
	return nil
}

func (one *pythonContext) listen(from *os.File, to chan<- cellAnswer) {
	defer from.Close()
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 64<<10), answerLineMax)
	for lines.Scan() {
		var answer cellAnswer
		if json.Unmarshal(lines.Bytes(), &answer) == nil {
			select {
			case to <- answer:
			case <-one.done:
				return
			}
		}
	}
}

// end the process with all that it started.
func (one *pythonContext) end() {
	killSession(one.cmd.Process.Pid)
	<-one.done
	one.requests.Close()
	one.pipes.closeReaders()
}

type interpreterMessage struct {
	Type      string  `json:"type"`
	Text      string  `json:"text,omitempty"`
	Name      string  `json:"name,omitempty"`
	Value     *string `json:"value,omitempty"`
	Traceback *string `json:"traceback,omitempty"`
}

// execute runs the code of the client's first message, and sends its output and end.
func (all *contexts) execute(c *call) error {
	if _, err := c.firstProgram("python3", "python"); err != nil {
		return fail(http.StatusNotImplemented, "GET /process/interpreter/execute: the image has no python3")
	}
	s, err := c.upgrade()
	if err != nil {
		return err
	}
	_ = s.conn.SetReadDeadline(time.Now().Add(startPatience))
	var request cellRequest
	if err := s.conn.ReadJSON(&request); err != nil {
		go s.receive(func(int, []byte) error { return nil })
		s.finish(websocket.ClosePolicyViolation, "the first message must be JSON with the member code")
		return errAnswered
	}
	_ = s.conn.SetReadDeadline(time.Now().Add(silenceMax))
	go s.receive(func(int, []byte) error { return nil })
	one, err := all.of(c, request.ContextID)
	if err != nil {
		_, text := statusOf(err)
		s.finish(websocket.ClosePolicyViolation, text)
		return errAnswered
	}
	select {
	case <-one.turn:
	case <-s.gone:
		return errAnswered
	}
	code, text := one.run(s, request)
	if one.hasEnded() {
		// It was killed, or has ended itself: the next request gets a new one.
		all.remove(one.info.ID, one)
		one.end()
	}
	one.turn <- struct{}{}
	s.finish(code, text)
	return errAnswered
}

func (one *pythonContext) hasEnded() bool {
	select {
	case <-one.done:
		return true
	default:
		return false
	}
}

// run code with the turn. It answers the code and reason of the close frame.
func (one *pythonContext) run(s *socket, request cellRequest) (int, string) {
	if one.hasEnded() {
		return websocket.CloseInternalServerErr, "the interpreter has ended"
	}
	one.number++
	request.Number = one.number
	timeout := cellTimeout
	if request.Timeout != nil {
		timeout = time.Duration(*request.Timeout * float64(time.Second))
	}
	into := newOutput(outputMax)
	for _, pipe := range one.pipes.readers {
		pipe.into, pipe.paused = into, make(chan struct{})
		go pipe.pump()
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		sendOutput(s, into)
	}()
	line, _ := json.Marshal(request)
	requests := one.requests
	go func() { _, _ = requests.Write(append(line, '\n')) }()
	answer, failed := one.await(s, request.Number, timeout)
	one.pipes.drain()
	into.end()
	<-sent
	into.forget()
	switch {
	case errors.Is(failed, os.ErrDeadlineExceeded):
		// Without a control message: clients take one for the end of the code, and do not wait for the close.
		return closeOfTimeout, "the code ran longer than its timeout"
	case failed != nil:
		return websocket.CloseInternalServerErr, failed.Error()
	case answer.Interrupted:
		_ = s.sendJSON(interpreterMessage{Type: "control", Text: "interrupted"})
		return websocket.CloseNormalClosure, ""
	case answer.Name != "":
		_ = s.sendJSON(interpreterMessage{Type: "error", Name: answer.Name, Value: &answer.Value, Traceback: &answer.Traceback})
	}
	_ = s.sendJSON(interpreterMessage{Type: "control", Text: "completed"})
	return websocket.CloseNormalClosure, ""
}

// await the answer. After the timeout, and when the client is gone, the code is interrupted; if that does not end it, the
// process is.
func (one *pythonContext) await(s *socket, number int, timeout time.Duration) (answer cellAnswer, failed error) {
	var expired <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		expired = timer.C
	}
	gone := s.gone
	var last <-chan time.Time
	interrupt := func() {
		_ = syscall.Kill(-one.cmd.Process.Pid, syscall.SIGINT)
		last = time.After(interruptGrace)
	}
	for {
		select {
		case answer = <-one.answers:
			if answer.Number == number {
				return answer, failed
			}
		case <-expired:
			failed, expired = os.ErrDeadlineExceeded, nil
			interrupt()
		case <-gone:
			gone = nil
			interrupt()
		case <-last:
			killSession(one.cmd.Process.Pid)
		case <-one.done:
			if failed == nil {
				failed = errors.New("the interpreter has ended")
			}
			return answer, failed
		}
	}
}
