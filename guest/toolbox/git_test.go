package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
)

func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skip("this machine has no " + program)
	}
}

func TestARepositoryIsClonedChangedAndPushed(t *testing.T) {
	needs(t, "git")
	b := startBox(t)
	folder := t.TempDir()
	if out, err := exec.Command("git", "init", "--quiet", "--bare", "--initial-branch=main", folder+"/origin").CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	work := folder + "/work"
	clone := object{"url": folder + "/origin", "path": work}
	b.want(200, "POST", "git/clone", clone)
	b.want(409, "POST", "git/clone", object{"url": folder + "/origin", "path": folder})
	if got := b.want(200, "GET", "git/status?path="+work, nil); got["currentBranch"] != "main" || len(got["fileStatus"].([]interface{})) != 0 {
		t.Fatal(got)
	}
	if _, data := b.raw("GET", "git/history?path="+work, nil); string(data) != "[]" {
		t.Fatalf("%s", data)
	}
	_ = os.WriteFile(work+"/a b", []byte("1"), 0o644)
	_ = os.WriteFile(work+"/ü", []byte("2"), 0o644)
	b.want(200, "POST", "git/add", object{"path": work, "files": []string{"a b"}})
	got := b.want(200, "GET", "git/status?path="+work, nil)
	want := []interface{}{
		map[string]interface{}{"name": "a b", "extra": "", "staging": "Added", "worktree": "Unmodified"},
		map[string]interface{}{"name": "ü", "extra": "", "staging": "Untracked", "worktree": "Untracked"},
	}
	if !reflect.DeepEqual(got["fileStatus"], want) {
		t.Fatal(got)
	}
	b.want(400, "POST", "git/commit", object{"path": work, "message": "m"})
	commit := object{"path": work, "message": "first\n\nwith lines", "author": "A U", "email": "a@b"}
	hash := b.want(200, "POST", "git/commit", commit)["hash"].(string)
	b.want(200, "POST", "git/push", object{"path": work})
	b.want(409, "POST", "git/commit", object{"path": work, "message": "empty", "author": "A", "email": "a@b"})
	b.want(200, "POST", "git/commit", object{"path": work, "message": "empty", "author": "A", "email": "a@b", "allow_empty": true})
	if got := b.want(200, "GET", "git/status?path="+work, nil); got["ahead"] != 1.0 || got["branchPublished"] != true {
		t.Fatal(got)
	}
	_, history := b.raw("GET", "git/history?path="+work, nil)
	if !strings.Contains(string(history), hash) || !strings.Contains(string(history), `"message":"first\n\nwith lines"`) {
		t.Fatalf("%s", history)
	}
	b.want(201, "POST", "git/branches", object{"path": work, "name": "other"})
	b.want(409, "POST", "git/branches", object{"path": work, "name": "other"})
	b.want(400, "POST", "git/branches", object{"path": work, "name": "--force"})
	b.want(200, "POST", "git/checkout", object{"path": work, "branch": "other"})
	if got := b.want(200, "GET", "git/branches?path="+work, nil); !reflect.DeepEqual(got["branches"], []interface{}{"main", "other"}) {
		t.Fatal(got)
	}
	b.want(200, "POST", "git/checkout", object{"path": work, "branch": "main"})
	b.want(204, "DELETE", "git/branches", object{"path": work, "name": "other"})
	b.want(404, "POST", "git/checkout", object{"path": work, "branch": "other"})
	// Another clone, at a commit, and what it pulls.
	second := folder + "/second"
	b.want(200, "POST", "git/clone", object{"url": folder + "/origin", "path": second, "commit_id": hash})
	b.want(200, "POST", "git/push", object{"path": work})
	b.want(200, "POST", "git/checkout", object{"path": second, "branch": "main"})
	b.want(200, "POST", "git/pull", object{"path": second})
	if got := b.want(200, "GET", "git/status?path="+second, nil); got["behind"] != 0.0 {
		t.Fatal(got)
	}
	b.want(404, "GET", "git/status?path="+folder, nil)
	b.want(404, "GET", "git/status?path="+folder+"/none", nil)
}

func TestCredentialsOfGitReachTheServerAndNoError(t *testing.T) {
	needs(t, "git")
	b := startBox(t)
	var name, password string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, secret, ok := r.BasicAuth()
		if !ok {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(401)
			return
		}
		name, password = given, secret
		w.WriteHeader(403)
	}))
	defer server.Close()
	target := object{"url": server.URL + "/r.git", "path": t.TempDir() + "/r", "username": "us er", "password": "pa$$'word"}
	_, got := b.call("POST", "git/clone", target)
	if name != "us er" || password != "pa$$'word" {
		t.Fatalf("%q %q %v", name, password, got)
	}
	if strings.Contains(got["message"].(string), "word") {
		t.Fatal(got)
	}
	// Without credentials git does not ask.
	b.want(401, "POST", "git/clone", object{"url": server.URL + "/r.git", "path": t.TempDir() + "/r"})
}

func TestStatusOfRenamedAndUnmergedFiles(t *testing.T) {
	got := parseStatus("# branch.oid 1\x00# branch.head main\x00# branch.ab +2 -3\x00" +
		"2 R. N... 100644 100644 100644 a b R100 new name\x00old name\x00" +
		"u UU N... 1 2 3 4 a b c both\x00? un tracked\x00")
	want := repositoryStatus{"main", []fileStatus{
		{"new name", "old name", "Renamed", "Unmodified"},
		{"both", "", "Updated but unmerged", "Updated but unmerged"},
		{"un tracked", "", "Untracked", "Untracked"},
	}, 2, 3, true}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v", got)
	}
}
