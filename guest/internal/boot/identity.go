package boot

import (
	"encoding/binary"
	"io"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"releap/guest/internal/fault"
)

const (
	rndAddEntropy = 0x40085203
	rndReseedCRNG = 0x5207
)

// Renew gives the kernel its identity: random numbers first, so that nothing after draws what another copy of
// the same memory draws.
func (id *Identity) Renew() error {
	if len(id.Entropy) > 0 {
		if err := addEntropy(id.Entropy); err != nil {
			return fault.New(fault.Internal, "entropy: "+err.Error())
		}
	}
	if id.ClockNS > 0 {
		ts := syscall.NsecToTimespec(id.ClockNS)
		if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_SETTIME, 0, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
			return fault.New(fault.Internal, "clock: "+errno.Error())
		}
	}
	if id.Hostname != "" {
		if err := syscall.Sethostname([]byte(id.Hostname)); err != nil {
			return fault.New(fault.Internal, "hostname: "+err.Error())
		}
	}
	return nil
}

// addEntropy credits the bytes (random(4), RNDADDENTROPY) and makes the generator take them at once.
func addEntropy(bytes []byte) error {
	file, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	buf := make([]byte, 8+len(bytes))
	binary.LittleEndian.PutUint32(buf, uint32(8*len(bytes)))
	binary.LittleEndian.PutUint32(buf[4:], uint32(len(bytes)))
	copy(buf[8:], bytes)
	if err := call(int(file.Fd()), rndAddEntropy, unsafe.Pointer(&buf[0])); err != nil {
		return err
	}
	return call(int(file.Fd()), rndReseedCRNG, nil)
}

// WriteFiles puts the identity into the files of the current root. What says so already is left as it is: on a disk
// that has been used, the rest of such a file is its owner's.
func (id *Identity) WriteFiles(address string) error {
	if id.Hostname != "" {
		if err := ensure("/etc/hostname", id.Hostname+"\n", id.Hostname); err != nil {
			return err
		}
		hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
		if address == "" {
			address = "127.0.1.1"
		}
		if err := ensure("/etc/hosts", hosts+address+"\t"+id.Hostname+"\n", address, id.Hostname); err != nil {
			return err
		}
	}
	if len(id.DNS) > 0 {
		text := ""
		for _, server := range id.DNS {
			text += "nameserver " + server + "\n"
		}
		if err := ensure("/etc/resolv.conf", text, "nameserver", id.DNS[0]); err != nil {
			return err
		}
	}
	if id.MachineID != "" {
		return ensure("/etc/machine-id", id.MachineID+"\n", id.MachineID)
	}
	return nil
}

// ensure that a file has a line of these words, or replace all of it.
func ensure(path, text string, words ...string) error {
	if hasLine(path, words) {
		return nil
	}
	return replace(path, text)
}

// hasLine looks into the beginning of an ordinary file.
func hasLine(path string, words []string) bool {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return false
	}
	buf := make([]byte, 64*1024)
	n, _ := io.ReadFull(file, buf)
	for _, line := range strings.Split(string(buf[:n]), "\n") {
		have := strings.Fields(line)
		if len(have) < len(words) {
			continue
		}
		same := true
		for i, word := range words {
			same = same && have[i] == word
		}
		if same {
			return true
		}
	}
	return false
}

// replace a file. A link (which may dangle, or lead anywhere) is replaced itself, not followed.
func replace(path, text string) error {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	file, err := os.OpenFile(path, flags, 0o644)
	if os.IsNotExist(err) {
		if err = os.MkdirAll("/etc", 0o755); err == nil {
			file, err = os.OpenFile(path, flags, 0o644)
		}
	}
	if err != nil {
		if err = os.RemoveAll(path); err == nil {
			file, err = os.OpenFile(path, flags|os.O_EXCL, 0o644)
		}
	}
	if err != nil {
		return fault.New(fault.Code(err), err.Error())
	}
	_, err = file.WriteString(text)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fault.New(fault.Code(err), err.Error())
	}
	return nil
}
