package agent

import "time"

const (
	look = 5 * time.Millisecond
	// The most time that counts between two checks.
	lookMax = 10 * look
)

// wait until done, or until this machine has run for that time. While its host has it paused no process in it runs, though the
// clock continues.
func wait(patience time.Duration, done func() bool) {
	for began := time.Now(); !done() && patience > 0; {
		time.Sleep(look)
		now := time.Now()
		if passed := now.Sub(began); passed < lookMax {
			patience -= passed
		} else {
			patience -= lookMax
		}
		began = now
	}
}
