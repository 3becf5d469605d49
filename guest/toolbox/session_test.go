package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// box is a daemon that a test reaches over TCP.
type box struct {
	t    *testing.T
	host string
}

func startBox(t *testing.T) *box {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("commands are started as the sandbox's user: this needs root")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	server := newServer(newToolbox())
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
	return &box{t, listener.Addr().String()}
}

// call answers the status and what the body says.
func (b *box) call(method, path string, body interface{}) (int, map[string]interface{}) {
	b.t.Helper()
	status, data := b.raw(method, path, body)
	answer := map[string]interface{}{}
	if len(data) > 0 && data[0] == '{' {
		if err := json.Unmarshal(data, &answer); err != nil {
			b.t.Fatal(err)
		}
	}
	return status, answer
}

func (b *box) raw(method, path string, body interface{}) (int, []byte) {
	b.t.Helper()
	data, _ := json.Marshal(body)
	if body == nil {
		data = nil
	}
	request, _ := http.NewRequest(method, "http://"+b.host+"/"+path, bytes.NewReader(data))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		b.t.Fatal(err)
	}
	defer response.Body.Close()
	data, _ = io.ReadAll(response.Body)
	return response.StatusCode, data
}

func (b *box) want(status int, method, path string, body interface{}) map[string]interface{} {
	b.t.Helper()
	got, answer := b.call(method, path, body)
	if got != status {
		b.t.Fatalf("%s %s %v: %d %v", method, path, body, got, answer)
	}
	return answer
}

func (b *box) socket(path string) *websocket.Conn {
	b.t.Helper()
	conn, _, err := websocket.DefaultDialer.Dial("ws://"+b.host+"/"+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	return conn
}

func (b *box) session(id string) {
	b.want(201, "POST", "process/session", object{"sessionId": id})
	b.t.Cleanup(func() { b.raw("DELETE", "process/session/"+id, nil) })
}

func (b *box) exec(id, command string) map[string]interface{} {
	b.t.Helper()
	return b.want(200, "POST", "process/session/"+id+"/exec", object{"command": command})
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func TestASessionKeepsItsStateAndTellsStreamsApart(t *testing.T) {
	b := startBox(t)
	b.session("s")
	b.want(409, "POST", "process/session", object{"sessionId": "s"})
	b.exec("s", "cd /proc && export WORD='it''s' && f() { echo \"f $1\"; }")
	got := b.exec("s", "pwd; echo $WORD; f x; echo wrong >&2; printf '\\377\\000'; exit_is() { return 7; }; exit_is")
	if got["exitCode"] != 7.0 || got["stderr"] != "wrong\n" || got["stdout"] != "/proc\nits\nf x\n\uFFFD\x00" {
		t.Fatalf("%q", got)
	}
	// A syntax error, and an unknown command, leave the session as it is.
	if got := b.exec("s", "echo 'open"); got["exitCode"] == 0.0 || got["stderr"] == "" {
		t.Fatalf("%q", got)
	}
	if got := b.exec("s", "if"); got["exitCode"] == 0.0 {
		t.Fatalf("%q", got)
	}
	if got := b.exec("s", "no-such-command; pwd"); got["stdout"] != "/proc\n" {
		t.Fatalf("%q", got)
	}
	// What runs on in the background delays no answer.
	if got := b.exec("s", "sleep 1000 & echo started"); got["output"] != "started\n" {
		t.Fatalf("%q", got)
	}
	info := b.want(200, "GET", "process/session/s", nil)
	if info["sessionId"] != "s" || len(info["commands"].([]interface{})) != 6 {
		t.Fatalf("%q", info)
	}
	// The end of its shell is the session's.
	if got := b.exec("s", "exit 3"); got["exitCode"] != 3.0 {
		t.Fatalf("%q", got)
	}
	await(t, "the session has ended", func() bool {
		status, _ := b.call("POST", "process/session/s/exec", object{"command": "true"})
		return status == 409
	})
	b.want(204, "DELETE", "process/session/s", nil)
	b.want(404, "GET", "process/session/s", nil)
	b.want(400, "POST", "process/session", object{"sessionId": "../x"})
}

func TestASessionWorksInEachShell(t *testing.T) {
	b := startBox(t)
	for _, shell := range []string{"dash", "busybox", "bash"} {
		folder := t.TempDir()
		for _, dir := range []string{"/bin/", "/usr/bin/"} {
			if _, err := os.Stat(dir + shell); err == nil {
				_ = os.Symlink(dir+shell, folder+"/sh")
			}
		}
		if !exists(folder + "/sh") {
			continue
		}
		c := &call{set: settings{Env: map[string]string{"PATH": folder}}}
		one, err := startShell(c)
		if err != nil {
			t.Fatal(err)
		}
		run := func(text string) (int, string) {
			command := &sessionCommand{id: newID(), text: text, output: newOutput(outputMax), done: make(chan struct{}), begun: make(chan struct{})}
			one.run(command)
			return *command.exit, command.output.text(0)
		}
		if code, out := run("X='a b'; cd /; if"); code == 0 || out == "" {
			t.Errorf("%s: %d %q", shell, code, out)
		}
		if code, out := run("X='a b'; cd /proc; echo err >&2; echo out; false"); code != 1 || !strings.Contains(out, "err\n") {
			t.Errorf("%s: %d %q", shell, code, out)
		}
		if _, out := run("echo $X; echo $PWD"); out != "a b\n/proc\n" {
			t.Errorf("%s: %q", shell, out)
		}
		one.kill()
		<-one.ended
		one.close()
	}
	_ = b
}

func TestAnAsyncCommandIsFollowedAndTakesInput(t *testing.T) {
	b := startBox(t)
	b.session("a")
	started := b.want(202, "POST", "process/session/a/exec", object{
		"command": "echo ready; read line; echo got $line >&2; exit_is() { return 5; }; exit_is", "runAsync": true,
	})
	path := "process/session/a/command/" + started["cmdId"].(string)
	conn := b.socket(path + "/logs?follow=true")
	kind, first, err := conn.ReadMessage()
	if err != nil || kind != websocket.BinaryMessage || string(first) != "\x01\x01\x01ready\n" {
		t.Fatalf("%d %q %v", kind, first, err)
	}
	if got := b.want(200, "GET", path, nil); got["exitCode"] != nil {
		t.Fatalf("%v", got)
	}
	b.want(204, "POST", path+"/input", object{"data": "word\n"})
	var rest []byte
	for {
		_, data, err := conn.ReadMessage()
		if err != nil {
			if !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
				t.Fatal(err)
			}
			break
		}
		rest = append(rest, data...)
	}
	if string(rest) != "\x02\x02\x02got word\n" {
		t.Fatalf("%q", rest)
	}
	if got := b.want(200, "GET", path, nil); got["exitCode"] != 5.0 {
		t.Fatalf("%v", got)
	}
	if got := b.want(200, "GET", path+"/logs", nil); got["output"] != "ready\ngot word\n" || got["stdout"] != "ready\n" {
		t.Fatalf("%v", got)
	}
	b.want(409, "POST", path+"/input", object{"data": "late"})
	b.want(404, "GET", path+"x", nil)
}

func TestAFloodedSessionRefusesAndKeepsTheNewestOutput(t *testing.T) {
	b := startBox(t)
	b.session("f")
	marker := fmt.Sprintf("%d.75", 100000+os.Getpid())
	text := "head -c 20000000 /dev/zero | tr '\\0' x; echo END; sleep " + marker
	first := b.want(202, "POST", "process/session/f/exec", object{"command": text, "async": true})
	path := "process/session/f/command/" + first["cmdId"].(string)
	await(t, "it runs", func() bool { return running("sleep\x00"+marker+"\x00") == 1 })
	await(t, "the output is there", func() bool {
		got := b.want(200, "GET", path+"/logs", nil)["output"].(string)
		if len(got) > outputMax {
			t.Fatalf("%d bytes are kept", len(got))
		}
		return strings.HasSuffix(got, "END\n")
	})
	refused := 0
	for i := 0; i < waitingMax+5; i++ {
		status, _ := b.call("POST", "process/session/f/exec", object{"command": "true", "async": true})
		if status == 429 {
			refused++
		} else if status != 202 {
			t.Fatal(status)
		}
	}
	if refused == 0 || refused > 6 {
		t.Fatalf("%d of %d were refused", refused, waitingMax+5)
	}
	// Its end leaves nothing, also not what waits.
	follower := b.socket(path + "/logs?follow=true")
	b.want(204, "DELETE", "process/session/f", nil)
	for {
		if _, _, err := follower.ReadMessage(); err != nil {
			break
		}
	}
	await(t, "its process has ended", func() bool { return running("sleep\x00"+marker+"\x00") == 0 })
}

// running counts the processes with this command line.
func running(cmdline string) int {
	count := 0
	all, _ := os.ReadDir("/proc")
	for _, entry := range all {
		if text, _ := os.ReadFile("/proc/" + entry.Name() + "/cmdline"); string(text) == cmdline {
			count++
		}
	}
	return count
}

func TestCommandsOfASessionAreBoundedInSize(t *testing.T) {
	b := startBox(t)
	b.session("big")
	b.want(413, "POST", "process/session/big/exec", object{"command": strings.Repeat("#", commandMax+1)})
	before := textsMax
	textsMax = 4000
	defer func() { textsMax = before }()
	long := "echo done #" + strings.Repeat("x", 980)
	for i := 0; i < 10; i++ {
		if got := b.exec("big", long); got["output"] != "done\n" {
			t.Fatal(got["output"])
		}
	}
	if kept := b.want(200, "GET", "process/session/big", nil)["commands"].([]interface{}); len(kept) > 4 {
		t.Fatal(len(kept))
	}
}

func TestDeletingASessionEndsProcessesOfItsGroupsAndRemovesItsPipes(t *testing.T) {
	b := startBox(t)
	b.session("d")
	marker := fmt.Sprintf("%d.25", 100000+os.Getpid())
	b.exec("d", "set -m; sleep "+marker+" & sleep "+marker+" & ")
	sleeping := func() int { return running("sleep\x00" + marker + "\x00") }
	await(t, "both run", func() bool { return sleeping() == 2 })
	b.want(204, "DELETE", "process/session/d", nil)
	await(t, "none runs", func() bool { return sleeping() == 0 })
	await(t, "its pipes are gone", func() bool {
		left, err := os.ReadDir(os.Getenv("TMPDIR") + "/" + pipeFolder)
		return err == nil && len(left) == 0
	})
}

func TestATerminalTakesInputAndASizeAndTellsItsExitCode(t *testing.T) {
	b := startBox(t)
	created := b.want(201, "POST", "process/pty", object{
		"id": "p", "cwd": "/proc", "envs": object{"PS1": "> ", "WORD": "w"}, "cols": 70, "rows": 20, "lazyStart": true,
	})
	if created["sessionId"] != "p" {
		t.Fatal(created)
	}
	b.want(409, "POST", "process/pty", object{"id": "p"})
	if info := b.want(200, "GET", "process/pty/p", nil); info["active"] != false || info["cols"] != 70.0 {
		t.Fatal(info)
	}
	conn := b.socket("process/pty/p/connect")
	kind, first, err := conn.ReadMessage()
	if err != nil || kind != websocket.TextMessage || !strings.Contains(string(first), `"status":"connected"`) {
		t.Fatalf("%q %v", first, err)
	}
	var seen strings.Builder
	until := func(text string) {
		t.Helper()
		for !strings.Contains(seen.String(), text) {
			_, data, err := conn.ReadMessage()
			if err != nil {
				t.Fatalf("%v after %q", err, seen.String())
			}
			seen.Write(data)
		}
	}
	_ = conn.WriteMessage(websocket.BinaryMessage, []byte("stty size; echo $WORD-$PWD\n"))
	until("20 70")
	until("w-/proc")
	if info := b.want(200, "POST", "process/pty/p/resize", object{"cols": 100, "rows": 30}); info["cols"] != 100.0 || info["active"] != true {
		t.Fatal(info)
	}
	_ = conn.WriteMessage(websocket.TextMessage, []byte("stty size; exit 4\n"))
	until("30 100")
	for err == nil {
		_, _, err = conn.ReadMessage()
	}
	closed, ok := err.(*websocket.CloseError)
	if !ok || closed.Code != 1000 || closed.Text != `{"exitCode":4}` {
		t.Fatal(err)
	}
	if info := b.want(200, "GET", "process/pty/p", nil); info["active"] != false {
		t.Fatal(info)
	}
	b.want(200, "DELETE", "process/pty/p", nil)
	b.want(404, "GET", "process/pty/p", nil)
	b.want(400, "POST", "process/pty", object{"id": "q", "cols": 0, "rows": 1})
	gone := b.socket("process/pty/p/connect")
	if _, text, err := gone.ReadMessage(); err != nil || !strings.Contains(string(text), "not found") {
		t.Fatalf("%q %v", text, err)
	}
}

func TestATerminalThatNobodyReadsIsBounded(t *testing.T) {
	b := startBox(t)
	folder := t.TempDir()
	b.want(201, "POST", "process/pty", object{"id": "n", "cwd": folder})
	// With no client, and with one that never reads, after it was there and has vanished.
	conn := b.socket("process/pty/n/connect")
	_ = conn.WriteMessage(websocket.BinaryMessage, []byte("head -c 3000000 /dev/zero | tr '\\0' y; touch done\n"))
	time.Sleep(50 * time.Millisecond)
	conn.UnderlyingConn().Close()
	await(t, "it has written all", func() bool { return exists(folder + "/done") })
	// The next client gets the newest output.
	next := b.socket("process/pty/n/connect")
	_ = next.WriteMessage(websocket.BinaryMessage, []byte("echo LA''ST\n"))
	size := 0
	for {
		_, data, err := next.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		size += len(data)
		if bytes.Contains(data, []byte("LAST")) {
			break
		}
	}
	if size > scrollMax+readSize*4 {
		t.Fatalf("%d bytes were kept", size)
	}
	b.want(200, "DELETE", "process/pty/n", nil)
}
