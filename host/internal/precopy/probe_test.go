package precopy

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
)

func TestTriesHowItLearnsWhatIsWritten(t *testing.T) {
	if _, err := exec.LookPath("cat"); err != nil {
		// As the only program of a machine (runAsInit).
		t.Skip(err)
	}
	pid, address, _ := startTarget(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	copier, err := newPreCopier(pid, address, targetBytes, os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	expected, err := copier.begin()
	if err != nil {
		t.Fatal(err)
	}
	for round := 0; round < 2; round++ {
		if how, err := probe(); err != nil || how != expected {
			t.Errorf("%q (%v) instead of %q", how, err, expected)
		}
	}
}
