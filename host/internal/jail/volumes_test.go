package jail

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fakeVirtiofsd ends with 0 if it is root of its users and owns the folder that it would serve.
func fakeVirtiofsd() {
	var facts unix.Stat_t
	if err := unix.Stat("/data", &facts); err != nil || os.Getuid() != 0 || facts.Uid != 0 {
		os.Stderr.WriteString("not root of its own users\nsecond line")
		os.Exit(1)
	}
	if err := os.WriteFile("/data/file", nil, 0o600); err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
}

// virtiofsd gives a folder like that of set-up.
func virtiofsd(t *testing.T, mode os.FileMode) string {
	t.Helper()
	folder := open(t)
	content, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(folder, "lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "lib", loaders[runtime.GOARCH]), content, mode); err != nil {
		t.Fatal(err)
	}
	return folder
}

func TestTheProbeOfVolumesNamesWhatTheHostLacksAndLeavesNothing(t *testing.T) {
	needsRoot(t)
	good := virtiofsd(t, 0o755)
	itself, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	probe := func(virtiofsd, before string, environment ...string) string {
		t.Helper()
		// A mount namespace of its own, for what is removed before.
		child := exec.Command("/usr/bin/unshare", "--mount", "/bin/sh", "-ec", before+"; exec "+itself)
		child.Env = append(append(os.Environ(), "VOLUMES_TEST_ARGS="+virtiofsd), environment...)
		output, err := child.CombinedOutput()
		if (err == nil) != (len(output) == 0) {
			t.Errorf("%v: %q", err, output)
		}
		return string(output)
	}
	attached := func() string {
		t.Helper()
		files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		if err != nil {
			t.Fatal(err)
		}
		var probes []string
		for _, one := range files {
			if path, _ := os.ReadFile(one); strings.Contains(string(path), "releap-probe") {
				probes = append(probes, one)
			}
		}
		return strings.Join(probes, " ")
	}
	for _, one := range []struct{ virtiofsd, before, path, wanted string }{
		{good, ":", os.Getenv("PATH"), ""},
		{good, ":", "/nonexistent", "mkfs.xfs (package xfsprogs): "},
		{good, "mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3", os.Getenv("PATH"),
			"loop devices (kernel module loop): open /dev/loop-control: no such file"},
		{good + "/missing", ":", os.Getenv("PATH"), "virtiofsd (unpacked by set-up): " + good + "/missing: no such file"},
		{virtiofsd(t, 0o644), ":", os.Getenv("PATH"), "virtiofsd (unpacked by set-up): "},
	} {
		output := probe(one.virtiofsd, one.before, "PATH="+one.path)
		if !strings.HasPrefix(output, one.wanted) || (one.wanted == "") != (output == "") || strings.Contains(output, "\n") {
			t.Errorf("instead of %q: %q", one.wanted, output)
		}
	}
	// The kernel detaches a device some time after its last use. What stays fails the test by its deadline.
	for attached() != "" {
		time.Sleep(10 * time.Millisecond)
	}
}
