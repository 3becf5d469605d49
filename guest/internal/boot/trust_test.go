package boot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const testRoot = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
const public = "-----BEGIN CERTIFICATE-----\nBBBB\n-----END CERTIFICATE-----"

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func install(t *testing.T, root string, env map[string]string) map[string]string {
	t.Helper()
	added, errs := InstallTrust(root, testRoot, env)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return added
}

func TestTrustIsAddedToTheBundleOfTheImageOnce(t *testing.T) {
	root := t.TempDir()
	write(t, root+defaultBundle, public)
	if err := os.MkdirAll(root+"/usr/local/share/ca-certificates", 0o755); err != nil {
		t.Fatal(err)
	}
	for round := 0; round < 2; round++ {
		added := install(t, root, nil)
		for _, name := range append([]string{"SSL_CERT_FILE"}, replacing...) {
			if added[name] != defaultBundle {
				t.Fatalf("%s is %q", name, added[name])
			}
		}
		if added["NODE_EXTRA_CA_CERTS"] != trustFile {
			t.Fatal(added)
		}
	}
	if got := read(t, root+defaultBundle); got != public+"\n"+testRoot {
		t.Fatalf("got %q", got)
	}
	for _, path := range []string{trustFile, "/usr/local/share/ca-certificates/releap-egress.crt"} {
		if got := read(t, root+path); got != testRoot {
			t.Fatalf("%s is %q", path, got)
		}
	}
}

func TestTrustFollowsTheLinkOfABundle(t *testing.T) {
	root := t.TempDir()
	extracted := "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"
	write(t, root+extracted, public+"\n")
	if err := os.MkdirAll(root+"/etc/pki/tls/certs", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../ca-trust/extracted/pem/tls-ca-bundle.pem", root+"/etc/pki/tls/certs/ca-bundle.crt"); err != nil {
		t.Fatal(err)
	}
	if added := install(t, root, nil); added["SSL_CERT_FILE"] != extracted {
		t.Fatal(added)
	}
	if got := read(t, root+extracted); strings.Count(got, "AAAA") != 1 {
		t.Fatalf("got %q", got)
	}
}

func TestTrustWithoutABundleTakesNoAuthoritiesAway(t *testing.T) {
	root := t.TempDir()
	for round := 0; round < 2; round++ {
		added := install(t, root, nil)
		if len(added) != 2 || added["SSL_CERT_FILE"] != defaultBundle {
			t.Fatal(added)
		}
	}
	if got := read(t, root+defaultBundle); got != testRoot {
		t.Fatalf("got %q", got)
	}
}

func TestTrustIsReplacedWithAnOverlap(t *testing.T) {
	const next = "-----BEGIN CERTIFICATE-----\nCCCC\n-----END CERTIFICATE-----\n"
	certificates := func(root, pem string) map[string]string {
		added, errs := InstallTrust(root, pem, nil)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		return added
	}
	with, without := t.TempDir(), t.TempDir()
	write(t, with+defaultBundle, public+"\n")
	for _, pem := range []string{testRoot, testRoot + next, next + testRoot, next} {
		certificates(with, pem)
		// The bundle is still the agent's own: it does not take authorities away.
		if added := certificates(without, pem); len(added) != 2 {
			t.Fatal(added)
		}
		for _, path := range []string{with + trustFile, without + trustFile, without + defaultBundle} {
			if got := read(t, path); got != pem {
				t.Fatalf("%s is %q", path, got)
			}
		}
	}
	if got := read(t, with+defaultBundle); got != public+"\n"+testRoot+next {
		t.Fatalf("got %q", got)
	}
}

func TestTrustIsAddedToBundlesThatTheEnvironmentNames(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/opt/own.pem", public)
	install(t, root, map[string]string{"SSL_CERT_FILE": "/opt/own.pem", "CURL_CA_BUNDLE": "relative.pem"})
	if got := read(t, root+"/opt/own.pem"); !strings.HasSuffix(got, testRoot) {
		t.Fatalf("got %q", got)
	}
	env := WithMissing(map[string]string{"A": "own"}, map[string]string{"A": "added", "B": "added"})
	if env["A"] != "own" || env["B"] != "added" {
		t.Fatal(env)
	}
}
