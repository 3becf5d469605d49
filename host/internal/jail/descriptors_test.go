package jail

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// reserveReport prints the descriptor of the poller of the runtime, which the first file that it opens begins.
func reserveReport() {
	if err := reserve(); err != nil {
		fmt.Println(err)
	}
	file, err := os.Open(os.Args[0])
	if err != nil {
		fmt.Println(err)
	}
	defer file.Close()
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, entry := range entries {
		if target, _ := os.Readlink("/proc/self/fd/" + entry.Name()); target == "anon_inode:[eventpoll]" {
			fmt.Println(entry.Name())
		}
	}
}

func TestThePollerOfTheRuntimeHasNoDescriptorThatTheCommandGets(t *testing.T) {
	output, err := exec.Command(os.Args[0], "reserve-report").CombinedOutput()
	if err != nil {
		t.Fatal(err, string(output))
	}
	found := strings.Fields(string(output))
	if len(found) == 0 {
		t.Fatal("the runtime has no poller")
	}
	for _, text := range found {
		var descriptor int
		if _, err := fmt.Sscan(text, &descriptor); err != nil || descriptor <= lastDescriptor {
			t.Errorf("the poller has descriptor %s", text)
		}
	}
}
