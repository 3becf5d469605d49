package boot

import (
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf16"
)

// javaStores are where Java keeps its authorities: distributions have one for all versions, others one in each installation.
var javaStores = []string{
	"/etc/ssl/certs/java/cacerts",
	"/etc/pki/ca-trust/extracted/java/cacerts",
	"/etc/pki/java/cacerts",
	"/usr/lib/jvm/*/lib/security/cacerts",
	"/usr/lib/jvm/*/jre/lib/security/cacerts",
	"/usr/lib64/jvm/*/lib/security/cacerts",
	"/usr/local/openjdk-*/lib/security/cacerts",
	"/usr/java/*/lib/security/cacerts",
	"/opt/java/*/lib/security/cacerts",
	"/opt/*/lib/security/cacerts",
}

const (
	javaAlias    = "releap-egress"
	javaPassword = "changeit"
	jksMagic     = 0xfeedfeed
)

// trustInJava adds certificates to the stores of Java, in both formats that they have. A store that cannot be read, or that has
// a password of its own, stays as it is: the sandbox starts nevertheless.
func trustInJava(root string, certificates [][]byte, env map[string]string) {
	patterns := javaStores
	if home := env["JAVA_HOME"]; strings.HasPrefix(home, "/") {
		patterns = append([]string{home + "/lib/security/cacerts", home + "/jre/lib/security/cacerts"}, patterns...)
	}
	for _, pattern := range patterns {
		paths, _ := filepath.Glob(root + pattern)
		for _, path := range paths {
			addToStore(path, certificates)
		}
	}
}

func addToStore(path string, certificates [][]byte) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return
	}
	info, err := os.Stat(real)
	if err != nil || !info.Mode().IsRegular() || info.Size() > bundleMax {
		return
	}
	store, err := os.ReadFile(real)
	if err != nil {
		return
	}
	added := store
	for _, certificate := range certificates {
		if bytes.Contains(added, certificate) {
			continue
		}
		if next, ok := withJKS(added, certificate); ok {
			added = next
		} else if next, ok := withPKCS12(added, certificate); ok {
			added = next
		}
	}
	if len(added) == len(store) {
		return
	}
	// A program that is reading the store sees the old one or the new one.
	temporary := real + ".releap"
	if os.WriteFile(temporary, added, info.Mode().Perm()) != nil || os.Rename(temporary, real) != nil {
		_ = os.Remove(temporary)
	}
}

// certificatesOf returns the certificates of a PEM text as DER.
func certificatesOf(pem string) (found [][]byte) {
	for _, part := range strings.Split(pem, "-----BEGIN CERTIFICATE-----")[1:] {
		body, _, ok := strings.Cut(part, "-----END CERTIFICATE-----")
		if !ok {
			continue
		}
		if der, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(body), "")); err == nil {
			found = append(found, der)
		}
	}
	return found
}

// aliasOf differs between certificates.
func aliasOf(certificate []byte) string {
	digest := sha1.Sum(certificate)
	const digits = "0123456789abcdef"
	alias := []byte(javaAlias + "-")
	for _, b := range digest[:4] {
		alias = append(alias, digits[b>>4], digits[b&15])
	}
	return string(alias)
}

// withJKS adds a certificate to a store in Java's own format: a header with the number of entries, the entries, and a SHA-1 of the
// password and all of that (sun.security.provider.JavaKeyStore).
func withJKS(store, certificate []byte) ([]byte, bool) {
	const headerBytes = 12
	if len(store) < headerBytes+sha1.Size || binary.BigEndian.Uint32(store) != jksMagic || binary.BigEndian.Uint32(store[4:]) != 2 {
		return nil, false
	}
	body := store[:len(store)-sha1.Size]
	if !bytes.Equal(jksDigest(body), store[len(body):]) {
		return nil, false
	}
	out := append([]byte(nil), body...)
	binary.BigEndian.PutUint32(out[8:], binary.BigEndian.Uint32(out[8:])+1)
	text := func(s string) {
		out = binary.BigEndian.AppendUint16(out, uint16(len(s)))
		out = append(out, s...)
	}
	const trustedCertificate = 2
	out = binary.BigEndian.AppendUint32(out, trustedCertificate)
	text(aliasOf(certificate))
	out = binary.BigEndian.AppendUint64(out, uint64(time.Now().UnixMilli()))
	text("X.509")
	out = binary.BigEndian.AppendUint32(out, uint32(len(certificate)))
	out = append(out, certificate...)
	return append(out, jksDigest(out)...), true
}

func jksDigest(body []byte) []byte {
	hash := sha1.New()
	for _, unit := range utf16.Encode([]rune(javaPassword)) {
		hash.Write([]byte{byte(unit >> 8), byte(unit)})
	}
	hash.Write([]byte("Mighty Aphrodite"))
	hash.Write(body)
	return hash.Sum(nil)
}

// Tags and object identifiers of PKCS #12 (RFC 7292), and of what Java marks trusted certificates with.
const (
	derInteger     = 0x02
	derOctets      = 0x04
	derSequence    = 0x30
	derSet         = 0x31
	derExplicit0   = 0xa0
	derBMPString   = 0x1e
	oidData        = "\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x01"
	oidCertBag     = "\x06\x0b\x2a\x86\x48\x86\xf7\x0d\x01\x0c\x0a\x01\x03"
	oidX509        = "\x06\x0a\x2a\x86\x48\x86\xf7\x0d\x01\x09\x16\x01"
	oidFriendly    = "\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x09\x14"
	oidTrustedUse  = "\x06\x0c\x60\x86\x48\x01\x86\xf9\x66\xad\xca\x7b\x01\x01"
	oidAnyExtended = "\x06\x04\x55\x1d\x25\x00"
)

// withPKCS12 adds a certificate to a PKCS #12 store without a password, as of Java 18 and later: a part of its own, after the others.
func withPKCS12(store, certificate []byte) ([]byte, bool) {
	pfx, rest, ok := derTake(store, derSequence)
	if !ok || len(rest) > 0 {
		return nil, false
	}
	version, rest, ok := derTake(pfx, derInteger)
	if !ok || !bytes.Equal(version, []byte{3}) {
		return nil, false
	}
	// What follows would be a MAC, with a password.
	info, rest, ok := derTake(rest, derSequence)
	if !ok || len(rest) > 0 || !bytes.HasPrefix(info, []byte(oidData)) {
		return nil, false
	}
	content, rest, ok := derTake(info[len(oidData):], derExplicit0)
	if !ok || len(rest) > 0 {
		return nil, false
	}
	safe, rest, ok := derTake(content, derOctets)
	if !ok || len(rest) > 0 {
		return nil, false
	}
	parts, rest, ok := derTake(safe, derSequence)
	if !ok || len(rest) > 0 {
		return nil, false
	}
	var name []byte
	for _, unit := range utf16.Encode([]rune(aliasOf(certificate))) {
		name = append(name, byte(unit>>8), byte(unit))
	}
	attributes := der(derSet,
		der(derSequence, []byte(oidFriendly), der(derSet, der(derBMPString, name))),
		der(derSequence, []byte(oidTrustedUse), der(derSet, []byte(oidAnyExtended))))
	bag := der(derSequence,
		[]byte(oidCertBag),
		der(derExplicit0, der(derSequence, []byte(oidX509), der(derExplicit0, der(derOctets, certificate)))),
		attributes)
	data := func(content []byte) []byte {
		return der(derSequence, []byte(oidData), der(derExplicit0, der(derOctets, content)))
	}
	return der(derSequence, der(derInteger, version), data(der(derSequence, parts, data(der(derSequence, bag))))), true
}

// derTake returns the content of a value with this tag, and what follows it.
func derTake(from []byte, tag byte) (content, rest []byte, ok bool) {
	if len(from) < 2 || from[0] != tag {
		return nil, nil, false
	}
	length, at := int(from[1]), 2
	if length >= 0x80 {
		count := length & 0x7f
		if count == 0 || count > 4 || len(from) < 2+count {
			return nil, nil, false
		}
		length = 0
		for _, b := range from[2 : 2+count] {
			length = length<<8 | int(b)
		}
		at += count
	}
	if length > len(from)-at {
		return nil, nil, false
	}
	return from[at : at+length], from[at+length:], true
}

func der(tag byte, parts ...[]byte) []byte {
	content := bytes.Join(parts, nil)
	out := []byte{tag}
	switch length := len(content); {
	case length < 0x80:
		out = append(out, byte(length))
	default:
		digits := binary.BigEndian.AppendUint32(nil, uint32(length))
		for digits[0] == 0 {
			digits = digits[1:]
		}
		out = append(append(out, 0x80|byte(len(digits))), digits...)
	}
	return append(out, content...)
}
