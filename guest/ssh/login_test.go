package main

import "testing"

func TestTheAccountOfAUserIsFound(t *testing.T) {
	passwd := "root:x:0:0:root:/root:/bin/bash\n\nbroken:x\nweb:x:33:33::/srv:/usr/sbin/nologin\n"
	if got := findAccount(passwd, 33); got.name != "web" || got.shell != "/usr/sbin/nologin" {
		t.Fatalf("got %+v", got)
	}
	if got := findAccount(passwd, 0); got.shell != "/bin/bash" {
		t.Fatalf("got %+v", got)
	}
	if got := findAccount(passwd, 1000); got != (account{}) {
		t.Fatalf("got %+v", got)
	}
}

func TestShellsThatRefuseALoginAreNotUsed(t *testing.T) {
	for _, shell := range []string{"", "sh", "/usr/sbin/nologin", "/bin/false", "/no/such/shell"} {
		if usable(shell) {
			t.Errorf("%q is used", shell)
		}
	}
	if !usable("/bin/sh") {
		t.Error("/bin/sh is not used")
	}
}
