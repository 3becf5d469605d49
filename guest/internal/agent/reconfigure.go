package agent

import (
	"strconv"
	"time"

	"releap/guest/internal/boot"
	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
	"releap/guest/internal/session"
)

// filesPatience bounds the writing of identity files, which may block for ever on a root file system that the user has frozen.
// Host name, clock and random numbers are renewed without it.
const filesPatience = 5 * time.Second

// reconfigure gives a resumed or forked sandbox its new identity, before its processes resume: thaw is part of it.
// After an error they stay frozen until the host thaws them.
func (a *Agent) reconfigure(s *session.Stream, v jsonlite.Value) error {
	watch := &stopwatch{last: time.Now()}
	watch.w.Open('{')
	id, err := boot.ParseIdentity(v)
	if err != nil {
		return err
	}
	network, err := boot.ParseNetwork(v.Get("network"))
	if err != nil {
		return err
	}
	old := a.settings()
	defaults, err := parseDefaults(v, old)
	if err != nil {
		return err
	}
	if v.Get("env").Present() { // replaces, so that a variable can also go
		if defaults.Env, err = v.Get("env").TextMap("env"); err != nil {
			return err
		}
	}
	trust, err := boot.ParseTrust(v)
	if err != nil {
		return err
	}
	a.mu.Lock()
	ready, previous := a.configured, a.hostname
	// A resumed sandbox continues its boot. Another one that has its memory is a copy.
	isCopy := id.MachineID != "" && id.MachineID != a.machineID
	if network == nil {
		network = a.network
	}
	a.mu.Unlock()
	if !ready {
		return fault.New(fault.State, "the sandbox is not configured yet")
	}
	watch.mark("parse")
	var unwritten []error
	if a.pid1 {
		var added map[string]string
		files := func() (errs []error) {
			if isCopy {
				if err := boot.NewGeneration(); err != nil {
					errs = append(errs, err)
				}
			}
			if trust != "" {
				var failed []error
				added, failed = boot.InstallTrust("", trust, defaults.Env)
				errs = append(errs, failed...)
			}
			return errs
		}
		var done bool
		if unwritten, done, err = a.renew(&id, network, previous, files, watch); err != nil {
			return err
		}
		if done {
			defaults.Env = boot.WithMissing(defaults.Env, added)
		}
	}
	a.mu.Lock()
	a.defaults, a.network = defaults, network
	if id.Hostname != "" {
		a.hostname = id.Hostname
	}
	if id.MachineID != "" {
		a.machineID = id.MachineID
	}
	a.mu.Unlock()
	if a.freezer != nil {
		if _, err := a.freezer.Thaw(); err != nil {
			return err
		}
	}
	if isCopy && a.pid1 {
		a.hostKeys.Renew()
	}
	watch.mark("thaw")
	w := &jsonlite.Writer{}
	w.Open('{').Key("clock_ns").Text(strconv.FormatInt(time.Now().UnixNano(), 10))
	w.Key("timings_us").Raw(watch.w.Close('}').Bytes()).Key("unwritten").Open('[')
	for _, err := range unwritten {
		w.Text(err.Error())
	}
	s.Result(w.Close(']').Close('}'))
	return nil
}

// renew calls more after the files of the identity. It reports whether all files were tried in time.
func (a *Agent) renew(id *boot.Identity, network *boot.Network, previous string, more func() []error, watch *stopwatch) (errs []error, done bool, err error) {
	if err := id.Renew(); err != nil {
		return nil, false, err
	}
	watch.last = time.Now() // the clock was moved
	if err := a.freezer.ThawDisk(); err != nil {
		return nil, false, err
	}
	address := ""
	if network != nil {
		if err := network.Apply(); err != nil {
			return nil, false, err
		}
		address = network.Address.String()
	}
	watch.mark("network")
	written := make(chan []error, 1)
	go func() {
		defer fault.Guard(a.log, "identity files")
		written <- append(id.WriteFiles(address, previous), more()...)
	}()
	patience := time.NewTimer(filesPatience)
	defer patience.Stop()
	select {
	case errs = <-written:
		done = true
	case <-patience.C:
		errs = []error{fault.New(fault.State, "the files below /etc could not be written within "+filesPatience.String())}
	}
	watch.mark("files")
	return errs, done, nil
}
