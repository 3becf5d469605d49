package serve

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"releap/host/internal/hosttest"
)

// tag is that of a service. Network namespaces are named for the whole machine, on which another run may be testing too.
var tag = fmt.Sprintf("rl%08x", os.Getpid())

var create = `{"id":1,"create_slot":{"netns":"` + tag + `-7","veth":"` + tag + `v7","veth_mac":"02:72:6d:00:00:07",` +
	`"uplink":"up0","uplink_mac":"02:72:6e:00:00:07","host_address":"100.64.0.11","service_address":"100.64.0.1",` +
	`"tap":"tap0","tap_mac":"02:72:6c:00:00:01","uid":1879048199,"gateway":"172.16.0.1/30","guest_ip":"172.16.0.2",` +
	`"guest_mac":"02:72:6c:00:00:02","mtu":1500,"sysctls":[{"name":"ipv4/ip_forward","value":"1"}],` +
	`"rules":"table inet sandbox {\nchain c {\ntype filter hook input priority filter; policy drop\n}\n}"}}`

var destroy = `{"id":2,"destroy_slot":{"netns":"` + tag + `-7","veth":"` + tag + `v7","host_address":"100.64.0.11"}}`

// serveTest is the program that serves: the test's own, started again.
const serveTest = "SERVE_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(serveTest) != "" {
		if err := Serve(os.Stdin, os.Stdout); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// server is a server in a network namespace of its own.
type server struct {
	*exec.Cmd
	input  io.WriteCloser
	output *bufio.Scanner
}

func start(t *testing.T, env ...string) *server {
	t.Helper()
	hosttest.NeedsRoot(t, "it makes namespaces")
	command := exec.Command("unshare", "--net", "--", os.Args[0])
	command.Env = append(append(os.Environ(), serveTest+"=1"), env...)
	command.Stderr = os.Stderr
	input, output := hosttest.Start(t, command)
	t.Cleanup(func() { _, _ = io.WriteString(input, destroy+"\n") })
	return &server{command, input, bufio.NewScanner(output)}
}

// prepareHost makes what a host has: the route to a guest has the service's address as its source.
func (s *server) prepareHost(t *testing.T) {
	t.Helper()
	space := "/proc/" + strconv.Itoa(s.Process.Pid) + "/ns/net"
	own, _ := os.Readlink("/proc/self/ns/net")
	for {
		// unshare(1) has not made it yet.
		if theirs, err := os.Readlink(space); err != nil || theirs != own {
			break
		}
		time.Sleep(time.Millisecond)
	}
	command := exec.Command("nsenter", "--net="+space, "--", "sh", "-c",
		"ip link add name host0 type bridge && ip address add 100.64.0.1/22 dev host0 && ip link set host0 up")
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatal(string(output), err)
	}
}

// ask gives the answer's error; false when there is no answer.
func (s *server) ask(t *testing.T, line string) (string, bool) {
	t.Helper()
	if _, err := io.WriteString(s.input, line+"\n"); err != nil {
		return "", false
	}
	if !s.output.Scan() {
		return "", false
	}
	var said answer
	if err := json.Unmarshal(s.output.Bytes(), &said); err != nil || said.ID == 0 {
		t.Fatalf("%q, %v", s.output.Text(), err)
	}
	return said.Error, true
}

func mustDo(t *testing.T, s *server, line string) {
	t.Helper()
	if failure, answered := s.ask(t, line); failure != "" || !answered {
		t.Fatalf("%q, answered %v", failure, answered)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

var space = "/run/netns/" + tag + "-7"

func TestASlotIsMadeAndRemovedAndRemovingItAgainDoesNothing(t *testing.T) {
	s := start(t)
	s.prepareHost(t)
	for round := 0; round < 2; round++ {
		mustDo(t, s, create)
		inside := func(command string) string {
			output, err := exec.Command("nsenter", "--net="+space, "--", "sh", "-c", command).CombinedOutput()
			if err != nil {
				t.Fatal(command, string(output), err)
			}
			return string(output)
		}
		for command, wanted := range map[string]string{
			"ip -d link show tap0":              "tun type tap",
			"ip -4 address show tap0":           "172.16.0.1/30",
			"ip -4 address show up0":            "100.64.0.11/32",
			"ip route":                          "default via 100.64.0.1 dev up0",
			"ip neigh":                          "lladdr 02:72:6c:00:00:02 PERMANENT",
			"cat /proc/sys/net/ipv4/ip_forward": "1",
			"nft list ruleset":                  "policy drop",
			"ip link show lo":                   "UP",
		} {
			if output := inside(command); !strings.Contains(output, wanted) {
				t.Errorf("%s: no %q in %s", command, wanted, output)
			}
		}
		if failure, _ := s.ask(t, create); !strings.Contains(failure, "namespace") {
			t.Errorf("it was made twice: %q", failure)
		}
		mustDo(t, s, destroy)
		mustDo(t, s, destroy)
		if exists(space) {
			t.Fatal("its namespace is still there")
		}
	}
}

func TestKilledAtAnyStepTheNextProcessCanRemoveAndMakeIt(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for namespaces")
	}
	for _, step := range []string{
		"hostd slot namespace", "hostd slot veth", "hostd slot addresses", "hostd slot made", "hostd slot unlinked",
		"hostd slot namespace removed",
	} {
		folder := t.TempDir()
		if err := os.WriteFile(filepath.Join(folder, step), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		// Both processes work in one network namespace, as on a host.
		s := start(t)
		s.prepareHost(t)
		doomed := exec.Command("nsenter", "--net=/proc/"+strconv.Itoa(s.Process.Pid)+"/ns/net", "--", os.Args[0])
		doomed.Env = append(os.Environ(), serveTest+"=1", "RELEAP_CRASH_AT="+folder)
		doomed.Stdin = strings.NewReader(create + "\n")
		var said strings.Builder
		doomed.Stdout = &said
		if strings.Contains(step, "unlinked") || strings.Contains(step, "removed") {
			mustDo(t, s, create)
			doomed.Stdin = strings.NewReader(destroy + "\n")
		}
		err := doomed.Run()
		if status, ok := doomed.ProcessState.Sys().(interface{ Signal() unix.Signal }); !ok || status.Signal() != unix.SIGKILL {
			t.Fatalf("%s: it was not killed there: %v %s", step, err, said.String())
		}
		mustDo(t, s, destroy)
		mustDo(t, s, create)
		mustDo(t, s, destroy)
		if exists(space) {
			t.Fatalf("%s: its namespace is still there", step)
		}
	}
}

func TestWhatIsNoRequestEndsIt(t *testing.T) {
	for _, line := range []string{
		"", "null", "[]", "{}", `{"id":1}`, `{"id":0,` + destroy[8:], destroy + destroy, destroy + " x",
		strings.Replace(destroy, `"netns"`, `"more":1,"netns"`, 1),
		strings.Replace(destroy, tag+"-7", "../../etc/passwd", 1),
		strings.Replace(destroy, tag+"v7", "eth0", 1),
		strings.Replace(destroy, "100.64.0.11", "::1", 1),
		strings.Replace(create, "ipv4/ip_forward", "ipv4/../../kernel/core_pattern", 1),
		strings.Replace(create, "ipv4/ip_forward", "core/rmem_max", 1),
		strings.Replace(create, `"value":"1"`, `"value":"1\n"`, 1),
		strings.Replace(create, `"uid":1879048199`, `"uid":0`, 1),
		strings.Replace(create, `"tap":"tap0"`, `"tap":"../tap0"`, 1),
		strings.Replace(create, "table inet", `include \"/etc/shadow\" table inet`, 1),
		destroy[:len(destroy)-1] + `,` + create[8:],
	} {
		if _, err := parse([]byte(line)); err == nil {
			t.Errorf("%s was taken for a request", line)
		}
	}
	for _, line := range []string{create, destroy} {
		if _, err := parse([]byte(line)); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if err := Serve(strings.NewReader(strings.Repeat("x", lineMaxBytes+1)), io.Discard); err == nil {
		t.Error("a line without end was read")
	}
}

// FuzzParse runs its seeds in ordinary tests: what is accepted names nothing but slots, and is accepted again when it is
// written down.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{create, destroy, "", "{", `{"id":-1}`, `{"id":1e400}`, "\x00", `{"id":1,"create_slot":{}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		asked, err := parse(line)
		if err != nil {
			return
		}
		netns, veth := "", ""
		if asked.CreateSlot != nil {
			netns, veth = asked.CreateSlot.Netns, asked.CreateSlot.Veth
		} else {
			netns, veth = asked.DestroySlot.Netns, asked.DestroySlot.Veth
		}
		if !strings.HasPrefix(netns, "rl") || !strings.HasPrefix(veth, "rl") || strings.ContainsAny(netns+veth, "/.\x00") {
			t.Fatalf("%q, %q", netns, veth)
		}
		again, err := json.Marshal(asked)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parse(again); err != nil {
			t.Fatalf("%s: %v", again, err)
		}
	})
}
