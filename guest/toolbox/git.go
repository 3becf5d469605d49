package main

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

const (
	filesOfAdd = 10_000
	historyOf  = 1000
	// unit separates the fields of a commit; messages may have line breaks.
	unit = "\x1f"
)

func (t *toolbox) addGit() {
	t.add("POST", "git/clone", gitClone)
	t.add("GET", "git/status", gitStatus)
	t.add("GET", "git/branches", gitBranches)
	t.add("POST", "git/branches", gitCreateBranch)
	t.add("DELETE", "git/branches", gitDeleteBranch)
	t.add("POST", "git/checkout", gitCheckout)
	t.add("POST", "git/add", gitAdd)
	t.add("POST", "git/commit", gitCommit)
	t.add("POST", "git/push", gitRemote("push"))
	t.add("POST", "git/pull", gitRemote("pull"))
	t.add("GET", "git/history", gitHistory)
}

// gitCredentials are given to git in its environment: arguments are visible to every process of the sandbox.
type gitCredentials struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

const (
	nameVariable     = "RELEAP_GIT_USERNAME"
	passwordVariable = "RELEAP_GIT_PASSWORD"
	credentialHelper = `credential.helper=!f() { test "$1" = get && printf 'username=%s\npassword=%s\n' "$` + nameVariable + `" "$` + passwordVariable + `"; }; f`
)

// git runs the image's git as the sandbox's user and answers its standard output.
func (c *call) git(dir string, credentials gitCredentials, args ...string) (string, error) {
	if _, err := c.firstProgram("git"); err != nil {
		return "", fail(http.StatusNotImplemented, "%s %s: the image has no git: install it, or use an image that has it", c.r.Method, c.r.URL.Path)
	}
	env := map[string]string{"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_PAGER": "cat", "GIT_EDITOR": "true"}
	// A folder that was uploaded may belong to another user; the client named it.
	argv := []string{"git", "-c", "safe.directory=*"}
	if credentials != (gitCredentials{}) {
		env[nameVariable], env[passwordVariable] = credentials.Username, credentials.Password
		argv = append(argv, "-c", "credential.helper=", "-c", credentialHelper)
	}
	for _, arg := range args {
		if strings.IndexByte(arg, 0) >= 0 {
			return "", badRequest("arguments of git must not have NUL")
		}
	}
	cmd, err := c.command(dir, env, append(argv, args...)...)
	if err != nil {
		return "", err
	}
	result, err := run(c.r.Context(), cmd, "", 0, false)
	if err != nil {
		return "", err
	}
	if result.code != 0 {
		return "", gitFailure(result)
	}
	return result.output.raw(stdout), nil
}

var (
	notAuthenticated = regexp.MustCompile(`(?i)authentication failed|could not read (username|password)|invalid username or password|HTTP Basic: Access denied`)
	notThere         = regexp.MustCompile(`(?i)not a git repository|repository .*not found|remote branch .* not found|pathspec .* did not match|branch .* not found|does not exist|no such|invalid reference|unknown revision`)
	conflicting      = regexp.MustCompile(`(?i)already exists|conflict|nothing (added )?to commit|no changes added|non-fast-forward|\[rejected\]|would be overwritten|used by worktree|checked out at`)
	urlPassword      = regexp.MustCompile(`://[^/@\s]+@`)
)

// gitFailure makes an error of what git says. A password in a URL is not repeated.
func gitFailure(result *ended) error {
	text := strings.TrimSpace(result.output.text(stderr) + "\n" + result.output.text(stdout))
	if len(text) > 4000 {
		text = text[:4000]
	}
	text = urlPassword.ReplaceAllString(text, "://***@")
	status := http.StatusBadRequest
	switch {
	case notAuthenticated.MatchString(text):
		status = http.StatusUnauthorized
	case conflicting.MatchString(text):
		status = http.StatusConflict
	case notThere.MatchString(text):
		status = http.StatusNotFound
		text += " (not found)"
	}
	return fail(status, "git: %s", text)
}

// gitBody is what the requests about a repository have.
type gitBody struct {
	gitCredentials
	Path       string   `json:"path"`
	Name       string   `json:"name"`
	Branch     string   `json:"branch"`
	Files      []string `json:"files"`
	Message    string   `json:"message"`
	Author     string   `json:"author"`
	Email      string   `json:"email"`
	AllowEmpty bool     `json:"allow_empty"`
	URL        string   `json:"url"`
	CommitID   string   `json:"commit_id"`
	Insecure   bool     `json:"insecure_skip_tls"`
}

func (c *call) gitBody() (gitBody, error) {
	var body gitBody
	if err := c.body(&body); err != nil {
		return body, err
	}
	path, err := c.absolute(body.Path)
	body.Path = path
	return body, err
}

// revision refuses what git would take for an option.
func revision(what, name string) error {
	if name == "" || name[0] == '-' {
		return badRequest("%s %q is not the name of a branch or commit", what, name)
	}
	return nil
}

func gitClone(c *call) error {
	body, err := c.gitBody()
	if err != nil {
		return err
	}
	if body.URL == "" {
		return badRequest("url is missing")
	}
	var args []string
	if body.Insecure {
		args = append(args, "-c", "http.sslVerify=false")
	}
	args = append(args, "clone", "--quiet")
	if body.Branch != "" {
		args = append(args, "--branch="+body.Branch)
	}
	if body.CommitID != "" {
		if err := revision("commit_id", body.CommitID); err != nil {
			return err
		}
	}
	if _, err := c.git("", body.gitCredentials, append(args, "--", body.URL, body.Path)...); err != nil {
		return err
	}
	if body.CommitID != "" {
		if _, err := c.git(body.Path, gitCredentials{}, "checkout", "--quiet", "--detach", body.CommitID, "--"); err != nil {
			return err
		}
	}
	return c.done(http.StatusOK)
}

type fileStatus struct {
	Name     string `json:"name"`
	Extra    string `json:"extra"`
	Staging  string `json:"staging"`
	Worktree string `json:"worktree"`
}

var statusNames = map[byte]string{
	'.': "Unmodified", ' ': "Unmodified", '?': "Untracked", 'M': "Modified", 'T': "Modified", 'A': "Added", 'D': "Deleted",
	'R': "Renamed", 'C': "Copied", 'U': "Updated but unmerged",
}

type repositoryStatus struct {
	CurrentBranch   string       `json:"currentBranch"`
	FileStatus      []fileStatus `json:"fileStatus"`
	Ahead           int          `json:"ahead"`
	Behind          int          `json:"behind"`
	BranchPublished bool         `json:"branchPublished"`
}

func gitStatus(c *call) error {
	path, err := c.path("path")
	if err != nil {
		return err
	}
	text, err := c.git(path, gitCredentials{}, "status", "--porcelain=v2", "--branch", "--untracked-files=all", "-z")
	if err != nil {
		return err
	}
	return c.send(http.StatusOK, parseStatus(text))
}

// parseStatus reads the format of git-status(1), porcelain 2 with -z.
func parseStatus(text string) repositoryStatus {
	status := repositoryStatus{FileStatus: []fileStatus{}}
	records := strings.Split(text, "\x00")
	for i := 0; i < len(records); i++ {
		record := records[i]
		if len(record) < 3 {
			continue
		}
		kind := record[0]
		switch kind {
		case '#':
			fields := strings.Fields(record)
			if len(fields) >= 3 && fields[1] == "branch.head" {
				status.CurrentBranch = fields[2]
			}
			if len(fields) == 4 && fields[1] == "branch.ab" {
				status.BranchPublished = true
				status.Ahead, _ = strconv.Atoi(strings.TrimPrefix(fields[2], "+"))
				status.Behind, _ = strconv.Atoi(strings.TrimPrefix(fields[3], "-"))
			}
		case '?':
			status.FileStatus = append(status.FileStatus, fileStatus{record[2:], "", "Untracked", "Untracked"})
		case '1', '2', 'u':
			// The number of fields before the path, by kind.
			fields := strings.SplitN(record, " ", map[byte]int{'1': 9, '2': 10, 'u': 11}[kind])
			if len(fields) < 9 || len(fields[1]) != 2 {
				continue
			}
			one := fileStatus{Name: fields[len(fields)-1], Staging: statusNames[fields[1][0]], Worktree: statusNames[fields[1][1]]}
			if kind == '2' && i+1 < len(records) {
				i++
				one.Extra = records[i] // the former path
			}
			status.FileStatus = append(status.FileStatus, one)
		}
	}
	return status
}

func gitBranches(c *call) error {
	path, err := c.path("path")
	if err != nil {
		return err
	}
	text, err := c.git(path, gitCredentials{}, "for-each-ref", "--format=%(refname:short)", "refs/heads")
	if err != nil {
		return err
	}
	return c.send(http.StatusOK, object{"branches": append([]string{}, strings.Fields(text)...)})
}

func gitCreateBranch(c *call) error {
	body, err := c.gitBody()
	if err == nil {
		err = revision("name", body.Name)
	}
	if err == nil {
		_, err = c.git(body.Path, gitCredentials{}, "branch", body.Name)
	}
	if err != nil {
		return err
	}
	return c.done(http.StatusCreated)
}

func gitDeleteBranch(c *call) error {
	body, err := c.gitBody()
	if err == nil {
		err = revision("name", body.Name)
	}
	if err == nil {
		_, err = c.git(body.Path, gitCredentials{}, "branch", "--delete", "--force", body.Name)
	}
	if err != nil {
		return err
	}
	return c.done(http.StatusNoContent)
}

func gitCheckout(c *call) error {
	body, err := c.gitBody()
	if err == nil {
		err = revision("branch", body.Branch)
	}
	if err == nil {
		_, err = c.git(body.Path, gitCredentials{}, "checkout", "--quiet", body.Branch, "--")
	}
	if err != nil {
		return err
	}
	return c.done(http.StatusOK)
}

func gitAdd(c *call) error {
	body, err := c.gitBody()
	if err != nil {
		return err
	}
	if len(body.Files) == 0 || len(body.Files) > filesOfAdd {
		return badRequest("files must have 1 to %d entries", filesOfAdd)
	}
	if _, err := c.git(body.Path, gitCredentials{}, append([]string{"add", "--"}, body.Files...)...); err != nil {
		return err
	}
	return c.done(http.StatusOK)
}

func gitCommit(c *call) error {
	body, err := c.gitBody()
	if err != nil {
		return err
	}
	if body.Message == "" || body.Author == "" || body.Email == "" {
		return badRequest("message, author and email are needed")
	}
	args := []string{
		"-c", "user.name=" + body.Author, "-c", "user.email=" + body.Email, "-c", "commit.gpgSign=false",
		"commit", "--quiet", "--message=" + body.Message,
	}
	if body.AllowEmpty {
		args = append(args, "--allow-empty")
	}
	if _, err := c.git(body.Path, gitCredentials{}, args...); err != nil {
		return err
	}
	hash, err := c.git(body.Path, gitCredentials{}, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	return c.send(http.StatusOK, object{"hash": strings.TrimSpace(hash)})
}

// gitRemote pushes or pulls the present branch.
func gitRemote(operation string) handler {
	return func(c *call) error {
		body, err := c.gitBody()
		if err != nil {
			return err
		}
		args := []string{"-c", "push.autoSetupRemote=true", "-c", "push.default=current", operation, "--quiet"}
		if operation == "pull" {
			args = []string{"-c", "pull.ff=only", operation, "--quiet"}
		}
		if _, err := c.git(body.Path, body.gitCredentials, args...); err != nil {
			return err
		}
		return c.done(http.StatusOK)
	}
}

type commitInfo struct {
	Hash      string `json:"hash"`
	Author    string `json:"author"`
	Email     string `json:"email"`
	Message   string `json:"message"`
	Timestamp string `json:"timestamp"`
}

func gitHistory(c *call) error {
	path, err := c.path("path")
	if err != nil {
		return err
	}
	commits := []commitInfo{}
	if _, err := c.git(path, gitCredentials{}, "rev-parse", "--git-dir"); err != nil {
		return err
	}
	// A repository without commits has no HEAD.
	if _, err := c.git(path, gitCredentials{}, "rev-parse", "--quiet", "--verify", "HEAD"); err != nil {
		return c.send(http.StatusOK, commits)
	}
	format := "--format=" + strings.Join([]string{"%H", "%an", "%ae", "%cI", "%B"}, unit)
	text, err := c.git(path, gitCredentials{}, "log", "-z", "--max-count="+strconv.Itoa(historyOf), format)
	if err != nil {
		return err
	}
	for _, record := range strings.Split(text, "\x00") {
		if fields := strings.SplitN(record, unit, 5); len(fields) == 5 {
			commits = append(commits, commitInfo{fields[0], fields[1], fields[2], strings.TrimSpace(fields[4]), fields[3]})
		}
	}
	return c.send(http.StatusOK, commits)
}
