package main

import (
	"strings"
	"testing"

	"github.com/gorilla/websocket"
)

// cell runs code in an interpreter: its messages, and the code of the close frame.
func (b *box) cell(request object) (messages []interpreterMessage, code int) {
	b.t.Helper()
	conn := b.socket("process/interpreter/execute")
	if err := conn.WriteJSON(request); err != nil {
		b.t.Fatal(err)
	}
	for {
		var message interpreterMessage
		if err := conn.ReadJSON(&message); err != nil {
			closed, ok := err.(*websocket.CloseError)
			if !ok {
				b.t.Fatal(err)
			}
			return messages, closed.Code
		}
		messages = append(messages, message)
	}
}

func textOf(messages []interpreterMessage, kind string) string {
	var text strings.Builder
	for _, one := range messages {
		if one.Type == kind {
			text.WriteString(one.Text)
		}
	}
	return text.String()
}

func TestAnInterpreterKeepsItsVariables(t *testing.T) {
	needs(t, "python3")
	b := startBox(t)
	if _, code := b.cell(object{"code": "import os\nx = 20"}); code != 1000 {
		t.Fatal(code)
	}
	got, code := b.cell(object{"code": "print(x + 1, os.environ['E'])\nos.system('echo sub; echo err >&2')\nprint('\u00fc' * 40000)", "envs": object{"E": "e"}})
	if out := textOf(got, "stdout"); code != 1000 || out != "21 e\nsub\n"+strings.Repeat("\u00fc", 40000)+"\n" {
		t.Fatalf("%d %q", code, out)
	}
	if textOf(got, "stderr") != "err\n" || textOf(got, "control") != "completed" {
		t.Fatalf("%+v", got)
	}
	got, _ = b.cell(object{"code": "def f():\n  return 1 / 0\nprint('E' in os.environ)\nf()"})
	last := got[len(got)-2]
	if textOf(got, "stdout") != "False\n" || last.Type != "error" || last.Name != "ZeroDivisionError" || !strings.Contains(*last.Traceback, "return 1 / 0") {
		t.Fatalf("%+v", got)
	}
	if got, _ := b.cell(object{"code": "x ="}); got[0].Name != "SyntaxError" {
		t.Fatalf("%+v", got)
	}
	// A context of its own has its own variables, and its folder.
	made := b.want(200, "POST", "process/interpreter/context", object{"cwd": "/proc"})
	id := made["id"].(string)
	got, _ = b.cell(object{"contextId": id, "code": "import os\nprint('x' in globals(), os.getcwd())"})
	if textOf(got, "stdout") != "False /proc\n" {
		t.Fatalf("%+v", got)
	}
	if all := b.want(200, "GET", "process/interpreter/context", nil)["contexts"].([]interface{}); len(all) != 2 {
		t.Fatal(all)
	}
	b.want(200, "DELETE", "process/interpreter/context/"+id, nil)
	if _, code := b.cell(object{"contextId": id, "code": "1"}); code != websocket.ClosePolicyViolation {
		t.Fatal(code)
	}
	b.want(501, "POST", "process/interpreter/context", object{"language": "cobol"})
}

func TestCodeThatRunsTooLongIsInterruptedAndKeepsItsVariables(t *testing.T) {
	needs(t, "python3")
	b := startBox(t)
	b.cell(object{"code": "y = 5"})
	got, code := b.cell(object{"code": "import time\ntime.sleep(1000)", "timeout": 0.3})
	if code != closeOfTimeout || len(got) != 0 {
		t.Fatalf("%d %+v", code, got)
	}
	if got, _ := b.cell(object{"code": "print(y)"}); textOf(got, "stdout") != "5\n" {
		t.Fatalf("%+v", got)
	}
	// Its client has gone: the next one has its turn.
	conn := b.socket("process/interpreter/execute")
	_ = conn.WriteJSON(object{"code": "print('on', flush=True)\ntime.sleep(1000)"})
	if _, _, err := conn.ReadMessage(); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if got, _ := b.cell(object{"code": "print(y)"}); textOf(got, "stdout") != "5\n" {
		t.Fatalf("%+v", got)
	}
	// An interpreter that ends itself is replaced.
	if _, code := b.cell(object{"code": "import os\nos._exit(3)"}); code != websocket.CloseInternalServerErr {
		t.Fatal(code)
	}
	if got, _ := b.cell(object{"code": "print('y' in globals())"}); textOf(got, "stdout") != "False\n" {
		t.Fatalf("%+v", got)
	}
}

func TestCodeIsRunByTheInterpretersOfTheImage(t *testing.T) {
	needs(t, "python3")
	b := startBox(t)
	got := b.want(200, "POST", "process/code-run", object{
		"code": "import sys, os\nprint(sys.argv[1:], os.environ['E'])\nprint('e', file=sys.stderr)\nsys.exit(3)", "language": "python", "argv": []string{"a", "b c"}, "envs": object{"E": "1"},
	})
	if got["exitCode"] != 3.0 || got["result"] != "['a', 'b c'] 1\ne\n" {
		t.Fatal(got)
	}
	for seconds := 1; ; seconds *= 4 {
		got := b.want(408, "POST", "process/code-run", object{"code": "print('so far')\nwhile True: pass", "language": "python", "timeout": seconds})
		if got["result"] == "" && seconds < 60 {
			continue // a busy machine takes longer than that to start Python
		}
		if got["result"] != "so far\n" || !strings.Contains(got["message"].(string), "timeout") {
			t.Fatal(got)
		}
		break
	}
	b.want(400, "POST", "process/code-run", object{"code": "x", "language": "cobol"})
	b.want(400, "POST", "process/code-run", object{"language": "python"})
	needs(t, "node")
	if got := b.want(200, "POST", "process/code-run", object{"code": "console.log(process.argv.slice(2))", "language": "javascript", "argv": []string{"x"}}); got["result"] != "[ 'x' ]\n" {
		t.Fatal(got)
	}
}
