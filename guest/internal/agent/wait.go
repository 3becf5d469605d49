package agent

import "time"

const (
	look = 5 * time.Millisecond
	// The most that counts between two looks.
	lookMax = 10 * look
)

// wait until done, or until so much time is over in which this machine ran. While its host had it paused, no process in it
// could run either, though the clock continued.
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
