package boot

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// run is for programs of a Java installation, which few machines have.
func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	output, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, output)
	}
	return string(output)
}

func newCertificate(t *testing.T, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}))
}

func TestTrustIsAddedToTheStoresOfJava(t *testing.T) {
	if _, err := exec.LookPath("keytool"); err != nil {
		t.Skip("keytool is not installed")
	}
	ours, next := newCertificate(t, "ours"), newCertificate(t, "next")
	theirs := filepath.Join(t.TempDir(), "theirs.pem")
	write(t, theirs, newCertificate(t, "theirs"))
	for name, options := range map[string][]string{
		"jks":    {"-storetype", "jks", "-storepass", "changeit"},
		"pkcs12": {"-J-Dkeystore.pkcs12.certProtectionAlgorithm=NONE", "-J-Dkeystore.pkcs12.macAlgorithm=NONE", "-storetype", "pkcs12", "-storepass", "changeit"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			store := filepath.Join(root, "usr/lib/jvm/some/lib/security/cacerts")
			if err := os.MkdirAll(filepath.Dir(store), 0o755); err != nil {
				t.Fatal(err)
			}
			arguments := append([]string{"-importcert", "-noprompt", "-alias", "theirs", "-file", theirs, "-keystore", store}, options...)
			run(t, "keytool", arguments...)
			var first []byte
			for round := 0; round < 2; round++ {
				if _, errs := InstallTrust(root, ours+next, map[string]string{"JAVA_HOME": "/usr/lib/jvm/some"}); len(errs) > 0 {
					t.Fatal(errs)
				}
				got, _ := os.ReadFile(store)
				if first != nil && !bytes.Equal(first, got) {
					t.Fatal("it was added twice")
				}
				first = got
			}
			listed := run(t, "keytool", "-list", "-rfc", "-keystore", store, "-storepass", "changeit")
			for _, certificate := range []string{ours, next} {
				block, _ := pem.Decode([]byte(certificate))
				if !strings.Contains(strings.Join(strings.Fields(listed), ""), base64.StdEncoding.EncodeToString(block.Bytes)) {
					t.Fatalf("not in the store:\n%s", listed)
				}
			}
			if strings.Count(listed, "trustedCertEntry") != 3 || strings.Count(listed, "releap-egress-") != 2 || !strings.Contains(listed, "theirs") {
				t.Fatalf("got %s", listed)
			}
		})
	}
}

func TestStoresThatCannotBeReadStayAsTheyAre(t *testing.T) {
	good := der(derSequence, der(derInteger, []byte{3}), der(derSequence, []byte(oidData), der(derExplicit0, der(derOctets, der(derSequence)))))
	if _, ok := withPKCS12(good, []byte("certificate")); !ok {
		t.Fatal("an empty store is one")
	}
	for _, store := range [][]byte{
		nil,
		{0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 0},
		append([]byte{0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 0}, make([]byte, 20)...),
		good[:len(good)-1],
		append(append([]byte(nil), good...), 0),
		// With a MAC.
		der(derSequence, der(derInteger, []byte{3}), der(derSequence, []byte(oidData), der(derExplicit0, der(derOctets, der(derSequence)))), der(derSequence)),
		{derSequence, 0x84, 0xff, 0xff, 0xff, 0xff},
		{derSequence, 0x80, 0, 0},
	} {
		root := t.TempDir()
		path := root + "/etc/ssl/certs/java/cacerts"
		write(t, path, string(store))
		install(t, root, nil)
		if got := read(t, path); got != string(store) {
			t.Fatalf("%x became %x", store, got)
		}
	}
}
