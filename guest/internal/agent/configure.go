package agent

import (
	"os"
	"strconv"
	"syscall"
	"time"

	"releap/guest/internal/boot"
	"releap/guest/internal/docker"
	"releap/guest/internal/entrypoint"
	"releap/guest/internal/exec"
	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
	"releap/guest/internal/process"
	"releap/guest/internal/session"
	"releap/guest/internal/store"
	"releap/guest/internal/volume"
)

// plan is a configure request, checked in full before anything is changed.
type plan struct {
	identity boot.Identity
	network  *boot.Network
	root     *boot.Disk
	scratch  *boot.Disk
	data     *boot.Disk // of containers
	engine   engine
	defaults exec.Defaults
	entry    *entrypoint.Spec
	reserve  int64 // bytes of memory that the sandbox does not get
	trust    string
	stores   []store.Spec
	offer    *store.Offer
	volumes  []volume.Spec
}

// engine is what happens for a container engine in the sandbox.
type engine int

const (
	noEngine engine = iota
	// ownEngine is one that the sandbox starts by itself.
	ownEngine
	// keptEngine is one that the agent keeps running.
	keptEngine
)

func parsePlan(v jsonlite.Value) (p plan, err error) {
	if p.identity, err = boot.ParseIdentity(v); err != nil {
		return p, err
	}
	if p.network, err = boot.ParseNetwork(v.Get("network")); err != nil {
		return p, err
	}
	disks := v.Get("disks")
	if p.root, err = boot.ParseDisk(disks.Get("root"), "disks.root", "squashfs"); err != nil {
		return p, err
	}
	if p.scratch, err = boot.ParseDisk(disks.Get("scratch"), "disks.scratch", "ext4"); err != nil {
		return p, err
	}
	if p.data, err = boot.ParseDisk(disks.Get("docker"), "disks.docker", "ext4"); err != nil {
		return p, err
	}
	if (p.root == nil) != (p.scratch == nil) {
		return p, fault.New(fault.Invalid, "disks.root and disks.scratch are needed together")
	}
	if v.Get("docker").Present() {
		p.engine = ownEngine
		start, err := v.Get("docker").Get("start").Flag("docker.start")
		if err != nil {
			return p, err
		}
		if start {
			p.engine = keptEngine
		}
	}
	if p.defaults, err = parseDefaults(v, exec.Defaults{Dir: "/"}); err != nil {
		return p, err
	}
	if p.reserve, err = v.Get("reserve_bytes").Int("reserve_bytes", 0, 0, 1<<62); err != nil {
		return p, err
	}
	if p.trust, err = boot.ParseTrust(v); err != nil {
		return p, err
	}
	for _, item := range v.Get("stores").Items() {
		spec, err := store.Parse(item)
		if err != nil {
			return p, err
		}
		p.stores = append(p.stores, spec)
	}
	if p.offer, err = store.ParseOffer(v.Get("store_program")); err != nil {
		return p, err
	}
	for _, item := range v.Get("volumes").Items() {
		spec, err := volume.Parse(item)
		if err != nil {
			return p, err
		}
		p.volumes = append(p.volumes, spec)
	}
	e := v.Get("entrypoint")
	if !e.Present() {
		return p, nil
	}
	argv, err := e.Get("argv").Texts("entrypoint.argv")
	if err != nil {
		return p, err
	}
	if len(argv) == 0 {
		return p, fault.New(fault.Invalid, "entrypoint.argv must not be empty; leave entrypoint out for none")
	}
	d, err := parseDefaults(e, p.defaults)
	if err != nil {
		return p, err
	}
	name, err := e.Get("stop_signal").Text("entrypoint.stop_signal")
	if err != nil {
		return p, err
	}
	p.entry = &entrypoint.Spec{Argv: argv, Env: d.Env, User: d.User, Dir: d.Dir, Stop: syscall.SIGTERM}
	if name != "" {
		// Whatever an image says here, it must not keep its sandbox from starting.
		if stop, err := process.ParseSignal(name); err == nil {
			p.entry.Stop = stop
		}
	}
	return p, nil
}

// parseDefaults reads env, user and working_dir over those of base.
func parseDefaults(v jsonlite.Value, base exec.Defaults) (d exec.Defaults, err error) {
	d = base
	own, err := v.Get("env").TextMap("env")
	if err != nil {
		return d, err
	}
	d.Env = make(map[string]string, len(base.Env)+len(own))
	for k, val := range base.Env {
		d.Env[k] = val
	}
	for k, val := range own {
		d.Env[k] = val
	}
	user, err := v.Get("user").Text("user")
	if err != nil {
		return d, err
	}
	if user != "" {
		d.User = user
	}
	dir, err := v.Get("working_dir").Text("working_dir")
	if err != nil {
		return d, err
	}
	if dir != "" {
		if dir[0] != '/' {
			dir = "/" + dir
		}
		d.Dir = dir
	}
	return d, nil
}

// stopwatch records the duration of each step, for the metrics of a start.
type stopwatch struct {
	last time.Time
	w    jsonlite.Writer
}

func (t *stopwatch) mark(name string) {
	now := time.Now()
	t.w.Key(name).Int(now.Sub(t.last).Microseconds())
	t.last = now
}

func (a *Agent) configure(s *session.Stream, v jsonlite.Value) error {
	watch := &stopwatch{last: time.Now()}
	watch.w.Open('{')
	p, err := parsePlan(v)
	if err != nil {
		return err
	}
	if !a.pid1 && (p.root != nil || p.network != nil || p.reserve > 0 || p.engine != noEngine || len(p.volumes) > 0) {
		return fault.New(fault.State, "disks, volumes, network, memory and Docker can only be configured where the agent is PID 1")
	}
	a.mu.Lock()
	if a.configured || a.busy {
		a.mu.Unlock()
		return fault.New(fault.State, "the sandbox is configured already")
	}
	a.busy = true
	a.mu.Unlock()
	watch.mark("parse")
	reserved, err := a.apply(&p, s, watch)
	a.mu.Lock()
	a.busy = false
	if err == nil {
		a.configured, a.defaults, a.network, a.hostname = true, p.defaults, p.network, p.identity.Hostname
		a.machineID = p.identity.MachineID
	}
	a.mu.Unlock()
	if err != nil {
		return err
	}
	if p.entry != nil {
		a.entry.Start(*p.entry)
		watch.mark("entrypoint")
	}
	w := &jsonlite.Writer{}
	w.Open('{').Key("entrypoint")
	a.entry.State().Describe(w)
	w.Key("reserved_bytes").Int(reserved)
	w.Key("timings_us").Raw(watch.w.Close('}').Bytes())
	s.Result(w.Close('}'))
	return nil
}

// apply returns how many bytes of memory it has reserved.
func (a *Agent) apply(p *plan, s *session.Stream, watch *stopwatch) (reserved int64, err error) {
	if a.pid1 {
		if err := p.identity.Renew(); err != nil {
			return 0, err
		}
		watch.last = time.Now() // the clock was moved
	}
	if p.reserve > 0 { // first, while what is free lies in few pieces
		if reserved, err = boot.Reserve(p.reserve); err != nil {
			return 0, err
		}
		watch.mark("reserve")
	}
	if p.network != nil {
		if err := p.network.Apply(); err != nil {
			return 0, err
		}
		watch.mark("network")
	}
	if len(p.volumes) > 0 {
		// The drivers find their devices while the disks are mounted.
		boot.OpenModules().Load(volume.Modules, a.log)
		watch.mark("volume_modules")
	}
	var modules *boot.Modules
	if p.engine != noEngine {
		modules = boot.OpenModules()
	}
	var scratch *os.File
	if p.root != nil {
		a.stores.UseModules(boot.OpenModules())
		keep, err := boot.Assemble(p.root, p.scratch, watch.mark)
		if err != nil {
			return 0, err
		}
		if a.freezer != nil {
			a.freezer.SetScratch(keep)
		}
		scratch = keep
		watch.mark("switch_root")
	}
	if p.data != nil {
		if err := p.data.MountAt(docker.DataDir); err != nil {
			return 0, err
		}
		watch.mark("docker")
	} else if p.engine != noEngine && scratch != nil {
		if err := boot.MountFolder(scratch, "docker", docker.DataDir); err != nil {
			return 0, err
		}
		watch.mark("docker")
	}
	if a.pid1 {
		address := ""
		if p.network != nil {
			address = p.network.Address.String()
		}
		isCopied := p.identity.IsCopied()
		if errs := p.identity.WriteFiles(address, ""); len(errs) > 0 {
			return 0, errs[0]
		}
		if err := boot.NewGeneration(); err != nil {
			return 0, err
		}
		if isCopied {
			a.hostKeys.Renew()
		}
		watch.mark("files")
	}
	if a.pid1 && p.trust != "" {
		added, errs := boot.InstallTrust("", p.trust, p.defaults.Env)
		if len(errs) > 0 {
			return 0, errs[0]
		}
		p.defaults.Env = boot.WithMissing(p.defaults.Env, added)
		if p.entry != nil {
			p.entry.Env = boot.WithMissing(p.entry.Env, added)
		}
		watch.mark("trust")
	}
	// Before object stores, whose folders may lie in them.
	if err := volume.Mount(p.volumes); err != nil {
		return 0, err
	}
	if len(p.volumes) > 0 {
		watch.mark("volumes")
	}
	// The entrypoint finds them.
	if err := a.stores.Mount(p.offer, s, p.stores...); err != nil {
		return 0, err
	}
	if len(p.stores) > 0 {
		watch.mark("stores")
	}
	load := func() { modules.Load(docker.Modules, a.log) }
	switch p.engine {
	case ownEngine: // which uses them at its start
		load()
		watch.mark("modules")
	case keptEngine:
		a.docker.Start(p.defaults.Env, load)
		watch.mark("engine")
	}
	return reserved, nil
}

// NetworkOption reads "address/prefix,gateway" of the kernel's command line.
func NetworkOption(text string) (*boot.Network, error) {
	comma, slash := -1, -1
	for i := range text {
		switch text[i] {
		case ',':
			comma = i
		case '/':
			slash = i
		}
	}
	if slash < 0 || comma < slash {
		return nil, fault.New(fault.Invalid, "releap.net must be ADDRESS/PREFIX,GATEWAY and is "+strconv.Quote(text))
	}
	w := &jsonlite.Writer{}
	prefix, _ := strconv.Atoi(text[slash+1 : comma])
	w.Open('{').Key("address").Text(text[:slash]).Key("prefix").Int(int64(prefix)).Key("gateway").Text(text[comma+1:]).Close('}')
	v, err := jsonlite.Parse(w.Bytes())
	if err != nil {
		return nil, err
	}
	return boot.ParseNetwork(v)
}
