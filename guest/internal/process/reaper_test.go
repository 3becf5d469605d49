package process

import (
	"io"
	"os"
	"sync"
	"syscall"
	"testing"
)

func spec(t *testing.T, argv ...string) Spec {
	t.Helper()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { null.Close() })
	user := User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	return Spec{Path: argv[0], Argv: argv, Dir: "/", User: user, Env: []string{"PATH=" + DefaultPath}, Files: [3]uintptr{null.Fd(), null.Fd(), null.Fd()}}
}

func TestEveryEndIsToldOnceHoweverQuick(t *testing.T) {
	table := only
	var all sync.WaitGroup
	for i := 0; i < 60; i++ {
		all.Add(1)
		go func(code int) {
			defer all.Done()
			p, bad := table.Start(spec(t, "/bin/sh", "-c", "exit "+string(rune('0'+code))))
			if bad != nil {
				t.Error(bad)
				return
			}
			<-p.Done()
			if p.Status().Code != code {
				t.Errorf("exit code %d, want %d", p.Status().Code, code)
			}
		}(i % 10)
	}
	all.Wait()
}

func TestASignalIsToldApartFromAnExitCode(t *testing.T) {
	table := only
	p, bad := table.Start(spec(t, "/bin/sh", "-c", "sleep 1000"))
	if bad != nil {
		t.Fatal(bad)
	}
	p.SignalGroup(syscall.SIGKILL)
	<-p.Done()
	if st := p.Status(); st.Signal != syscall.SIGKILL || st.Code != 137 {
		t.Error(st)
	}
	if p.Signal(syscall.SIGKILL) {
		t.Error("a process that has ended was signalled")
	}
}

func TestAGroupIsSignalledUntilItsLastMemberHasGone(t *testing.T) {
	table := only
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	s := spec(t, "/bin/sh", "-c", "sleep 1000 & exit 0")
	s.Files[1] = write.Fd()
	p, bad := table.Start(s)
	write.Close()
	if bad != nil {
		t.Fatal(bad)
	}
	<-p.Done()
	if p.gone != 0 {
		t.Fatal("a group with a member was taken for gone")
	}
	p.SignalGroup(syscall.SIGKILL)
	if _, err := read.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("the member outlives its group's end: %v", err)
	}

	q, bad := table.Start(spec(t, "/bin/sh", "-c", "exit 0"))
	if bad != nil {
		t.Fatal(bad)
	}
	<-q.Done()
	if q.gone != 1 {
		t.Error("a group without members may still be signalled")
	}
}

func TestCommandsThatCannotStartSayWhy(t *testing.T) {
	table := only
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/text", []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/script", []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, exit := range map[string]int{dir + "/text": CannotExecute, dir + "/script": CommandNotFound} {
		if _, bad := table.Start(spec(t, path)); bad == nil || bad.Exit != exit {
			t.Errorf("%s gave %v, want exit %d", path, bad, exit)
		}
	}
	if _, bad := Find("text", []string{"PATH=/nowhere:" + dir}, "/"); bad != nil {
		t.Error(bad)
	}
	if _, bad := Find("absent", []string{"PATH=" + dir}, "/"); bad == nil || bad.Exit != CommandNotFound {
		t.Error(bad)
	}
	if _, bad := Find("./text", nil, dir); bad != nil {
		t.Error(bad)
	}
	if _, bad := Find(dir, nil, "/"); bad == nil || bad.Exit != CannotExecute {
		t.Error(bad)
	}
}
