package process

import (
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// only one may reap: as in the agent, it waits for every child of this process.
var only *Table

func TestMain(m *testing.M) {
	Launch()
	only = NewTable(nil, func(text string) { os.Stderr.WriteString(text + "\n") })
	os.Exit(m.Run())
}

func TestFileSystemsWithAServerAreTold(t *testing.T) {
	local := "22 1 254:0 / / rw,relatime - overlay overlay rw\n23 22 0:5 / /proc rw shared:1 - proc proc rw\n"
	if hasServer(local) {
		t.Error("a proc file system may hang")
	}
	for _, kind := range []string{"fuse.rclone", "fuse", "nfs4", "9p", "virtiofs", "autofs", "unheard-of"} {
		if !hasServer(local + "24 22 0:9 / /mnt/a\\040b rw master:2 - " + kind + " source rw\n") {
			t.Errorf("%s cannot hang", kind)
		}
	}
}

func TestAProgramThatIsStartedApartIsTheSame(t *testing.T) {
	table := only
	s := spec(t, "/bin/sh", "-c", `test "$PWD" = /tmp && test "$0" = name && test "$X" = 1 && test ! -e /proc/$$/fd/3 && exit 7`, "name")
	s.Dir, s.Env = "/tmp", append(s.Env, "X=1")
	p, bad := table.startApart(s)
	if bad != nil {
		t.Fatal(bad)
	}
	<-p.Done()
	if p.Status().Code != 7 {
		t.Error(p.Status())
	}
	if _, bad := table.startApart(spec(t, "/no/such/program")); bad == nil || bad.Exit != CommandNotFound {
		t.Error(bad)
	}
}

func TestAProgramIsToldOfItsSockets(t *testing.T) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	s := spec(t, "/bin/sh", "-c", `test "$LISTEN_FDS" = 1 && test "$LISTEN_PID" = $$ && test -S /proc/$$/fd/3 && test ! -e /proc/$$/fd/4 && exit 7`)
	s.Sockets = []uintptr{uintptr(fd)}
	p, bad := only.Start(s)
	if bad != nil {
		t.Fatal(bad)
	}
	<-p.Done()
	if p.Status().Code != 7 {
		t.Error(p.Status())
	}
}

// A FUSE file system whose server never responds: every access waits.
func mountHung(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting takes root")
	}
	fd, err := syscall.Open("/dev/fuse", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("this kernel has no FUSE: " + err.Error())
	}
	dir := t.TempDir()
	options := "fd=" + strconv.Itoa(fd) + ",rootmode=40000,user_id=0,group_id=0,allow_other"
	if err := syscall.Mount("hung", dir, "fuse", syscall.MS_NOSUID|syscall.MS_NODEV, options); err != nil {
		syscall.Close(fd)
		t.Skip("FUSE cannot be mounted here: " + err.Error())
	}
	t.Cleanup(func() {
		_ = syscall.Unmount(dir, syscall.MNT_DETACH)
		syscall.Close(fd) // who waits gets an error now
	})
	return dir
}

func TestAStartThatTheKernelHoldsUpKeepsNobodyElse(t *testing.T) {
	table := only
	dir := mountHung(t)
	// A start that failed in an earlier test has been answered before its process was reaped.
	for len(runningOf(table)) != 0 {
		time.Sleep(time.Millisecond)
	}
	held := spec(t, "/bin/true")
	held.Dir = dir
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		if p, bad := table.Start(held); bad == nil {
			<-p.Done()
		}
	}()
	for len(runningOf(table)) == 0 {
		time.Sleep(time.Millisecond)
	}
	p, bad := table.Start(spec(t, "/bin/sh", "-c", "exit 3"))
	if bad != nil {
		t.Fatal(bad)
	}
	<-p.Done()
	if p.Status().Code != 3 {
		t.Error(p.Status())
	}
	select {
	case <-returned:
		t.Fatal("the file system answered")
	default:
	}
	// It is one that can be ended like any other.
	for _, q := range runningOf(table) {
		q.SignalGroup(syscall.SIGKILL)
	}
	<-returned
}

func runningOf(t *Table) []*Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []*Process
	for _, p := range t.running {
		all = append(all, p)
	}
	return all
}
