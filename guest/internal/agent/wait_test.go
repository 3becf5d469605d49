package agent

import (
	"testing"
	"time"
)

func TestTimeInWhichTheMachineStoodDoesNotCount(t *testing.T) {
	looks := 0
	wait(200*time.Millisecond, func() bool {
		looks++
		if looks == 2 {
			time.Sleep(400 * time.Millisecond)
		}
		return looks == 4
	})
	if looks != 4 {
		t.Errorf("given up after %d looks", looks)
	}
}

func TestWaitingEnds(t *testing.T) {
	began := time.Now()
	wait(50*time.Millisecond, func() bool { return false })
	if waited := time.Since(began); waited < 50*time.Millisecond {
		t.Errorf("given up after %v", waited)
	}
}
