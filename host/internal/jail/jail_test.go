package jail

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// separator cannot be in an argument of a test.
const separator = "\x1f"

// The tests start their own program again as the one that becomes the command.
func TestMain(m *testing.M) {
	if args := os.Getenv("JAIL_TEST_ARGS"); args != "" {
		if err := Exec(strings.Split(args, separator)); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func jailed(t *testing.T, args ...string) (string, error) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "JAIL_TEST_ARGS="+strings.Join(args, separator))
	output, err := child.CombinedOutput()
	return string(output), err
}

func TestTheCommandHasItsNamespacesLimitsAndNoChildrenToWaitFor(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for namespaces")
	}
	procs := filepath.Join(t.TempDir(), "cgroup.procs")
	if err := os.WriteFile(procs, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "program"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	script := `readlink /proc/self/ns/net /proc/self/ns/ipc /proc/self/ns/mnt
ulimit -c; ulimit -n; grep -h 'Max file size' /proc/self/limits; echo $$
grep -h 'Max processes' /proc/self/limits; grep -h 'Max locked memory' /proc/self/limits; grep NoNewPrivs /proc/self/status
grep " $1 " /proc/self/mountinfo; "$1/program" 2>&1`
	output, err := jailed(t, "--netns", "new", "--nofile", "99", "--fsize-kib", "3", "--nproc", "77", "--root", root, "--cgroup", procs,
		"--", "sh", "-c", script+" || true", "sh", root)
	if err != nil {
		t.Fatal(output, err)
	}
	lines := strings.Split(strings.TrimSpace(output), "\n")
	if len(lines) != 12 {
		t.Fatalf("%q", lines)
	}
	for index, name := range []string{"net", "ipc", "mnt"} {
		own, _ := os.Readlink("/proc/self/ns/" + name)
		if lines[index] == own {
			t.Errorf("it shares its %s namespace with the host", name)
		}
	}
	if lines[3] != "0" || lines[4] != "99" || !strings.Contains(lines[5], "3072") {
		t.Errorf("limits are %q", lines[3:6])
	}
	if !strings.Contains(lines[7], " 77 ") || !strings.Contains(lines[8], " 0 ") || !strings.HasSuffix(lines[9], "1") {
		t.Errorf("limits are %q", lines[7:10])
	}
	if !strings.Contains(lines[10], "nosuid,nodev,noexec") || !strings.Contains(lines[11], "ermission denied") {
		t.Errorf("its root is %q, and a program there %q", lines[10], lines[11])
	}
	joined, _ := os.ReadFile(procs)
	if string(joined) != lines[6] {
		t.Errorf("process %s has joined the cgroup as %q", lines[6], joined)
	}
	// Not by a shell, which handles SIGCHLD (bit 16) itself.
	signals, err := jailed(t, "--netns", "new", "--nofile", "99", "--fsize-kib", "3", "--nproc", "9", "--root", root, "--", "grep", "SigIgn", "/proc/self/status")
	if err != nil || !strings.HasSuffix(strings.TrimSpace(signals), "10000") {
		t.Errorf("ignored signals are %q (%v)", signals, err)
	}
}

func TestWhatCannotBeIsAnErrorBeforeTheCommandRuns(t *testing.T) {
	good := []string{"--netns", "new", "--nofile", "9", "--fsize-kib", "9", "--nproc", "9", "--root", t.TempDir()}
	for _, args := range [][]string{
		good,
		{"--netns", "new", "--nofile", "9", "--", "true"},
		{"--netns", "new", "--nofile", "9", "--fsize-kib", "9", "--nproc", "9", "--root", "/proc/self/missing", "--", "true"},
		{"--netns", "", "--nofile", "9", "--fsize-kib", "9", "--nproc", "9", "--root", "/tmp", "--", "true"},
		append(append([]string{}, good...), "--", "no-such-program"),
		append(append([]string{}, good...), "--cgroup", "/proc/self/missing", "--", "true"),
		{"--netns", "/nonexistent", "--nofile", "9", "--fsize-kib", "9", "--nproc", "9", "--root", "/tmp", "--", "true"},
		{"--nofile", "-1", "--", "true"},
	} {
		if output, err := jailed(t, args...); err == nil || output == "" {
			t.Errorf("%v: %q, %v", args, output, err)
		}
	}
}
