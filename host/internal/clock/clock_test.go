package clock

import (
	"bytes"
	"regexp"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTheClockOfThisHostIsDescribed(t *testing.T) {
	var output bytes.Buffer
	if err := Print(&output); err != nil {
		t.Fatal(err)
	}
	if line := output.String(); !regexp.MustCompile(`^(un)?synchronized \d+\n$`).MatchString(line) {
		t.Fatalf("%q", line)
	}
}

func TestAClockThatNothingDisciplinesIsUnsynchronized(t *testing.T) {
	if got := describe(unix.STA_PLL | unix.STA_UNSYNC); got != "unsynchronized" {
		t.Fatal(got)
	}
	if got := describe(unix.STA_PLL | unix.STA_NANO); got != "synchronized" {
		t.Fatal(got)
	}
}
