package process

import (
	"os"
	"reflect"
	"testing"

	"releap/guest/internal/fault"
)

func accounts(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(root+"/etc/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(root+"/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	write("passwd", "# comment\nroot:x:0:0:root:/root:/bin/sh\nbroken\nalice:x:1000:1001::/home/alice:/bin/sh\n1000:x:77:78::/odd:/bin/sh\nbob:x:2000:2000:::\n")
	write("group", "root:x:0:\nwheel:x:10:bob,alice\nstaff:x:50:alice\nbroken\n")
	return root
}

func TestUsersAreResolvedAsImagesMeanThem(t *testing.T) {
	root := accounts(t)
	for spec, want := range map[string]User{
		"":           {UID: 0, GID: 0, Name: "root", Home: "/root"},
		"alice":      {UID: 1000, GID: 1001, Groups: []uint32{10, 50}, Name: "alice", Home: "/home/alice"},
		"1000":       {UID: 77, GID: 78, Name: "1000", Home: "/odd"}, // a name that is a number wins
		"alice:50":   {UID: 1000, GID: 50, Name: "alice", Home: "/home/alice"},
		"alice:root": {UID: 1000, GID: 0, Name: "alice", Home: "/home/alice"},
		"4242":       {UID: 4242, GID: 0, Home: "/"},
		"4242:4343":  {UID: 4242, GID: 4343, Home: "/"},
		"2000":       {UID: 2000, GID: 2000, Groups: []uint32{10}, Name: "bob", Home: "/"},
	} {
		got, err := LookupUser(root, spec)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q gave %+v %v, want %+v", spec, got, err, want)
		}
	}
}

func TestUnknownUsersAndGroupsAreRefused(t *testing.T) {
	root := accounts(t)
	for spec, code := range map[string]string{
		"carol": fault.NotFound, "alice:nogroup": fault.NotFound, "alice:": fault.Invalid, "-1": fault.NotFound,
		"4294967295": fault.NotFound,
	} {
		if _, err := LookupUser(root, spec); fault.Code(err) != code {
			t.Errorf("%q gave %v, want %s", spec, err, code)
		}
	}
}

func TestAnImageWithoutAccountsHasRootAndNumbers(t *testing.T) {
	if u, err := LookupUser(t.TempDir(), ""); err != nil || u.UID != 0 || u.Home != "/root" {
		t.Error(u, err)
	}
	if u, err := LookupUser(t.TempDir(), "12:13"); err != nil || u.UID != 12 || u.GID != 13 {
		t.Error(u, err)
	}
}
