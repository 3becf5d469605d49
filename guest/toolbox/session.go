package main

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	sessionsMax = 128
	waitingMax  = 256  // commands of a session that have not begun
	historyMax  = 1000 // ended commands of a session that are kept
	nameMax     = 128
	commandMax  = 1 << 20
)

// textsMax bounds the text of all commands of a session that are kept. Tests lower it.
var textsMax = 8 << 20

// sessions are shells whose state lasts from one command to the next.
type sessions struct{ *registry[*session] }

type session struct {
	id     string
	shell  *shell
	closed chan struct{} // when the session is deleted or its shell has ended

	mu       sync.Mutex
	commands []*sessionCommand
	texts    int // bytes of all commands
	waiting  chan *sessionCommand
	ended    string // why, once it has
}

// sessionCommand is one command of a session.
type sessionCommand struct {
	id     string
	text   string
	async  bool
	output *output
	done   chan struct{}
	begun  chan struct{} // closed when it runs

	mu    sync.Mutex
	exit  *int
	input func([]byte) error // while it runs and takes input
}

type commandInfo struct {
	ID       string `json:"id"`
	Command  string `json:"command"`
	ExitCode *int   `json:"exitCode,omitempty"`
}

type sessionInfo struct {
	SessionID string        `json:"sessionId"`
	Commands  []commandInfo `json:"commands"`
}

func (t *toolbox) addSessions() {
	s := sessions{newRegistry[*session]("session", sessionsMax)}
	t.add("POST", "process/session", s.create)
	t.add("GET", "process/session", s.list)
	t.add("GET", "process/session/*", s.with(func(c *call, one *session) error { return c.send(http.StatusOK, one.describe()) }))
	t.add("DELETE", "process/session/*", s.with(s.delete))
	t.add("POST", "process/session/*/exec", s.with(execute))
	t.add("GET", "process/session/*/command/*", s.withCommand(func(c *call, one *sessionCommand) error {
		return c.send(http.StatusOK, one.describe())
	}))
	t.add("GET", "process/session/*/command/*/logs", s.withCommand(logs))
	t.add("POST", "process/session/*/command/*/input", s.withCommand(input))
}

func (s sessions) withCommand(handle func(*call, *sessionCommand) error) handler {
	return s.with(func(c *call, one *session) error {
		command := one.find(c.params[1])
		if command == nil {
			return fail(http.StatusNotFound, "command %q of session %q not found", c.params[1], one.id)
		}
		return handle(c, command)
	})
}

func (s sessions) create(c *call) error {
	var body struct {
		SessionID string `json:"sessionId"`
	}
	if err := c.body(&body); err != nil {
		return err
	}
	id := body.SessionID
	if err := checkName("sessionId", id); err != nil {
		return err
	}
	// The runner serves the session of the image's entrypoint.
	if id == "entrypoint" {
		return badRequest("the sessionId %q is reserved", id)
	}
	one, err := s.add(id, func() (*session, error) {
		shell, err := startShell(c)
		if err != nil {
			return nil, err
		}
		waiting := make(chan *sessionCommand, waitingMax)
		return &session{id: id, shell: shell, closed: make(chan struct{}), waiting: waiting}, nil
	})
	if err != nil {
		return err
	}
	go one.run()
	return c.done(http.StatusCreated)
}

// checkName refuses names that could not be a part of a path.
func checkName(what, name string) error {
	if name == "" || len(name) > nameMax || strings.ContainsAny(name, "/\\\x00") || name == "." || name == ".." {
		return badRequest("%s must have 1 to %d bytes, without slashes and NUL", what, nameMax)
	}
	return nil
}

func (s sessions) list(c *call) error {
	infos := []sessionInfo{}
	for _, one := range s.all() {
		infos = append(infos, one.describe())
	}
	return c.send(http.StatusOK, infos)
}

func (s sessions) delete(c *call, one *session) error {
	s.remove(one.id, one)
	one.end("the session was deleted")
	one.mu.Lock()
	defer one.mu.Unlock()
	for _, command := range one.commands {
		command.output.forget()
	}
	return c.done(http.StatusNoContent)
}

func (one *session) describe() sessionInfo {
	one.mu.Lock()
	commands := append([]*sessionCommand{}, one.commands...)
	one.mu.Unlock()
	info := sessionInfo{SessionID: one.id, Commands: make([]commandInfo, 0, len(commands))}
	for _, command := range commands {
		info.Commands = append(info.Commands, command.describe())
	}
	return info
}

func (one *session) find(id string) *sessionCommand {
	one.mu.Lock()
	defer one.mu.Unlock()
	for _, command := range one.commands {
		if command.id == id {
			return command
		}
	}
	return nil
}

// end the shell with all its processes. Commands that wait or run get an exit code.
func (one *session) end(why string) {
	one.mu.Lock()
	first := one.ended == ""
	if first {
		one.ended = why
		close(one.closed)
	}
	one.mu.Unlock()
	if first {
		one.shell.kill()
	}
}

// run the commands one after the other.
func (one *session) run() {
	defer one.shell.close()
	for {
		select {
		case command := <-one.waiting:
			one.shell.run(command)
		case <-one.shell.ended:
			one.end("its shell has ended with exit code " + one.shell.status())
		case <-one.closed:
		}
		select {
		case <-one.closed:
			<-one.shell.ended
			one.abandon()
			return
		default:
		}
	}
}

// abandon the commands that have not begun.
func (one *session) abandon() {
	for {
		select {
		case command := <-one.waiting:
			command.output.append(stderr, []byte("the session has ended before this command began\n"))
			command.finish(127)
		default:
			return
		}
	}
}

// enqueue a command, and forget the oldest ones.
func (one *session) enqueue(command *sessionCommand) error {
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.ended != "" {
		return fail(http.StatusConflict, "session %q has ended: %s; delete it and create another", one.id, one.ended)
	}
	for len(one.commands) > 0 && one.commands[0].hasEnded() &&
		(len(one.commands) >= historyMax || one.texts+len(command.text) > textsMax) {
		one.texts -= len(one.commands[0].text)
		one.commands[0].output.forget()
		one.commands = one.commands[1:]
	}
	if one.texts+len(command.text) > textsMax {
		return fail(http.StatusTooManyRequests, "the commands of session %q that wait have %d bytes, and %d are the most", one.id, one.texts, textsMax)
	}
	select {
	case one.waiting <- command:
	default:
		return fail(http.StatusTooManyRequests, "%d commands of session %q wait already, which is the most", waitingMax, one.id)
	}
	one.commands = append(one.commands, command)
	one.texts += len(command.text)
	return nil
}

func (command *sessionCommand) hasEnded() bool {
	select {
	case <-command.done:
		return true
	default:
		return false
	}
}

func execute(c *call, one *session) error {
	var body struct {
		Command  string `json:"command"`
		RunAsync bool   `json:"runAsync"`
		Async    bool   `json:"async"`
	}
	if err := c.body(&body); err != nil {
		return err
	}
	if body.Command == "" || strings.IndexByte(body.Command, 0) >= 0 {
		return badRequest("command must have at least one byte, and no NUL")
	}
	if len(body.Command) > commandMax {
		return fail(http.StatusRequestEntityTooLarge, "command has %d bytes; %d are the most", len(body.Command), commandMax)
	}
	command := &sessionCommand{
		id: newID(), text: body.Command, async: body.RunAsync || body.Async,
		output: newOutput(outputMax), done: make(chan struct{}), begun: make(chan struct{}),
	}
	if err := one.enqueue(command); err != nil {
		return err
	}
	if command.async {
		return c.send(http.StatusAccepted, object{"cmdId": command.id})
	}
	select {
	case <-command.done:
	case <-c.r.Context().Done():
		return errAnswered // the client is gone; the command is the session's
	}
	return c.send(http.StatusOK, object{
		"cmdId": command.id, "exitCode": command.describe().ExitCode, "output": command.output.text(0),
		"stdout": command.output.text(stdout), "stderr": command.output.text(stderr),
	})
}

func newID() string {
	var random [16]byte
	_, _ = rand.Read(random[:])
	return hex.EncodeToString(random[:])
}

func (command *sessionCommand) describe() commandInfo {
	command.mu.Lock()
	defer command.mu.Unlock()
	return commandInfo{command.id, command.text, command.exit}
}

// begin tells that it runs, with these pipes.
func (command *sessionCommand) begin(pipes *pipes) {
	command.mu.Lock()
	defer command.mu.Unlock()
	select {
	case <-command.begun:
		return
	default:
	}
	if pipes.input != nil {
		command.input = pipes.write
	}
	close(command.begun)
}

func (command *sessionCommand) finish(code int) {
	command.mu.Lock()
	defer command.mu.Unlock()
	if command.exit == nil {
		command.exit = &code
		command.input = nil
		command.output.end()
		close(command.done)
	}
}

func input(c *call, command *sessionCommand) error {
	var body struct {
		Data string `json:"data"`
	}
	if err := c.body(&body); err != nil {
		return err
	}
	// One that has just been started takes input soon.
	select {
	case <-command.begun:
	case <-command.done:
	case <-c.r.Context().Done():
		return errAnswered
	case <-time.After(inputPatience):
	}
	command.mu.Lock()
	write := command.input
	command.mu.Unlock()
	if write == nil {
		return fail(http.StatusConflict, "command %q takes no input: only one that was started with runAsync, while it runs", command.id)
	}
	if err := write([]byte(body.Data)); err != nil {
		return fail(http.StatusConflict, "command %q does not read its input: %v", command.id, err)
	}
	return c.done(http.StatusNoContent)
}
