package boot

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
)

const (
	trustFile     = "/etc/ssl/certs/releap-egress.pem"
	defaultBundle = "/etc/ssl/certs/ca-certificates.crt"
	bundleMax     = 8 << 20
)

// bundles of the distributions, in the order in which programs are pointed at one: Debian and Alpine, Red Hat, SUSE, LibreSSL.
var bundles = []string{
	defaultBundle,
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// anchors are folders whose certificates a distribution's own tool adds to its bundle when it makes it again.
var anchors = map[string]string{
	"/usr/local/share/ca-certificates": "releap-egress.crt",
	"/etc/pki/ca-trust/source/anchors": "releap-egress.pem",
	"/etc/pki/trust/anchors":           "releap-egress.pem",
}

// replacing are variables that name a bundle instead of the program's own authorities.
var replacing = []string{"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE"}

// ParseTrust reads an optional root certificate, as PEM.
func ParseTrust(v jsonlite.Value) (string, error) {
	pem, err := v.Get("trust").Text("trust")
	if err != nil {
		return "", err
	}
	if pem != "" && (len(pem) > 16384 || !strings.HasPrefix(pem, "-----BEGIN CERTIFICATE-----\n")) {
		return "", fault.New(fault.Invalid, "trust must be a certificate as PEM")
	}
	return pem, nil
}

// InstallTrust makes the programs below root trust a certificate (two while it is being replaced) besides those that the image
// trusts. env is the environment of the sandbox: files that it names get the certificate too. It returns variables to be added
// where they are not set.
func InstallTrust(root, pem string, env map[string]string) (added map[string]string, errs []error) {
	try := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	bundle := ""
	// What an earlier start has written, perhaps with a certificate of then.
	former, _ := readSmall(root + trustFile)
	for _, path := range bundles {
		if have, ok := readSmall(root + path); ok && have != "" && (have == former || have == pem) {
			continue
		}
		if appended, err := appendTo(root+path, pem); err != nil {
			try(err)
		} else if appended && bundle == "" {
			bundle = path
		}
	}
	for _, name := range append([]string{"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"}, replacing...) {
		if path := env[name]; strings.HasPrefix(path, "/") {
			_, err := appendTo(root+path, pem)
			try(err)
		}
	}
	for folder, name := range anchors {
		if info, err := os.Stat(root + folder); err == nil && info.IsDir() {
			try(writeTrust(root+filepath.Join(folder, name), pem))
		}
	}
	try(writeTrust(root+trustFile, pem))
	trustInJava(root, certificatesOf(pem), env)
	added = map[string]string{"NODE_EXTRA_CA_CERTS": trustFile}
	if bundle == "" {
		// Programs that bring their own authorities keep them: a bundle of one certificate would take them away.
		try(writeTrust(root+defaultBundle, pem))
		added["SSL_CERT_FILE"] = defaultBundle
		return added, errs
	}
	added["SSL_CERT_FILE"] = bundle
	for _, name := range replacing {
		added[name] = bundle
	}
	return added, errs
}

// appendTo adds the certificates to a bundle that it does not have. It reports whether there is such a bundle. Links are
// followed: in some distributions the bundle is one.
func appendTo(path, pem string) (bool, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false, nil
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > bundleMax {
		file.Close()
		return false, nil
	}
	have, err := io.ReadAll(io.LimitReader(file, bundleMax))
	file.Close()
	if err != nil {
		return false, fault.New(fault.Code(err), err.Error())
	}
	text := ""
	for _, certificate := range strings.SplitAfter(pem, "-----END CERTIFICATE-----\n") {
		if !strings.Contains(string(have), strings.TrimSpace(certificate)) {
			text += certificate
		}
	}
	if text == "" {
		return true, nil
	}
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false, fault.New(fault.Code(err), err.Error())
	}
	if len(have) > 0 && have[len(have)-1] != '\n' {
		text = "\n" + text
	}
	_, err = out.WriteString(text)
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return false, fault.New(fault.Code(err), err.Error())
	}
	return true, nil
}

func writeTrust(path, pem string) error {
	if have, ok := readSmall(path); ok && have == pem {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fault.New(fault.Code(err), err.Error())
	}
	return replace(path, pem)
}

// WithMissing adds variables that the environment does not have.
func WithMissing(env, added map[string]string) map[string]string {
	out := make(map[string]string, len(env)+len(added))
	for name, value := range added {
		out[name] = value
	}
	for name, value := range env {
		out[name] = value
	}
	return out
}
