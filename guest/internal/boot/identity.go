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

// Renew gives the kernel its identity: entropy first, so that no random number is the same in another copy of the same
// memory.
func (id *Identity) Renew() error {
	if len(id.Entropy) > 0 {
		if err := addEntropy(id.Entropy); err != nil {
			return fault.New(fault.Internal, "entropy: "+err.Error())
		}
	}
	if err := id.Clock.Set(); err != nil {
		return err
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

// IsCopied tells whether the current root was the root of another sandbox: it has the machine id of that.
func (id *Identity) IsCopied() bool { return id.isCopied("/etc/machine-id") }

func (id *Identity) isCopied(path string) bool {
	text, ok := readSmall(path)
	text = strings.TrimSpace(text)
	return ok && id.MachineID != "" && text != id.MachineID && len(text) == 32 && strings.Trim(text, "0123456789abcdef") == ""
}

// WriteFiles writes the identity to the files of the current root. Files that have it already are not changed: on a disk that has
// been used, the rest of such a file belongs to the user. previous is the former host name, or empty. All files are tried;
// the errors of those that could not be written are returned.
func (id *Identity) WriteFiles(address, previous string) (errs []error) {
	try := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	if id.Hostname != "" {
		try(ensure("/etc/hostname", id.Hostname+"\n", id.Hostname))
		if address == "" {
			address = "127.0.1.1"
		}
		try(id.writeHosts("/etc/hosts", address, previous))
	}
	if len(id.DNS) > 0 {
		text := ""
		for _, server := range id.DNS {
			text += "nameserver " + server + "\n"
		}
		try(ensure("/etc/resolv.conf", text, "nameserver", id.DNS[0]))
	}
	if id.MachineID != "" {
		try(ensure("/etc/machine-id", id.MachineID+"\n", id.MachineID))
	}
	return errs
}

// writeHosts makes the sandbox's own name resolve. The new name replaces an earlier one of the sandbox;
// every other line is its owner's.
func (id *Identity) writeHosts(path, address, previous string) error {
	text, ok := readSmall(path)
	if ok && previous != "" {
		renamed := renameHost(text, previous, id.Hostname)
		if !lineOf(renamed, []string{address, id.Hostname}) {
			if renamed != "" && !strings.HasSuffix(renamed, "\n") {
				renamed += "\n"
			}
			renamed += address + "\t" + id.Hostname + "\n"
		}
		if renamed == text {
			return nil
		}
		return replace(path, renamed)
	}
	if ok && lineOf(text, []string{address, id.Hostname}) {
		return nil
	}
	const local = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	return replace(path, local+address+"\t"+id.Hostname+"\n")
}

// renameHost replaces a name wherever it is a word of a hosts(5) line, outside of comments.
func renameHost(text, from, to string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		rule, comment := line, ""
		if at := strings.IndexByte(line, '#'); at >= 0 {
			rule, comment = line[:at], line[at:]
		}
		var out strings.Builder
		for word, at := 0, 0; at < len(rule); word++ {
			end := at
			for end < len(rule) && (rule[end] == ' ' || rule[end] == '\t') {
				end++
			}
			out.WriteString(rule[at:end])
			at = end
			for end < len(rule) && rule[end] != ' ' && rule[end] != '\t' {
				end++
			}
			if name := rule[at:end]; name == from && word > 0 {
				out.WriteString(to)
			} else {
				out.WriteString(name)
			}
			at = end
		}
		lines[i] = out.String() + comment
	}
	return strings.Join(lines, "\n")
}

// ensure that a file has a line of these words, or replace all of it.
func ensure(path, text string, words ...string) error {
	if have, ok := readSmall(path); ok && lineOf(have, words) {
		return nil
	}
	return replace(path, text)
}

// readSmall reads an ordinary file; not one that is larger than any such file is.
func readSmall(path string) (string, bool) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", false
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", false
	}
	buf := make([]byte, 64*1024+1)
	n, _ := io.ReadFull(file, buf)
	return string(buf[:n]), n < len(buf)
}

// lineOf tells whether a line of the text begins with these words.
func lineOf(text string, words []string) bool {
	for _, line := range strings.Split(text, "\n") {
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

// replace the contents of a file. A link (which may dangle, or lead anywhere) is replaced itself, not followed. The file
// is not emptied first: ext4 would allocate its blocks at once, on the critical path of a resume.
func replace(path, text string) error {
	const flags = os.O_WRONLY | os.O_CREATE | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	file, err := openRegular(path, flags)
	if os.IsNotExist(err) {
		if err = os.MkdirAll("/etc", 0o755); err == nil {
			file, err = openRegular(path, flags)
		}
	}
	if err != nil {
		if err = os.RemoveAll(path); err == nil {
			file, err = openRegular(path, flags|os.O_EXCL)
		}
	}
	if err != nil {
		return fault.New(fault.Code(err), err.Error())
	}
	_, err = file.WriteString(text)
	if err == nil {
		err = file.Truncate(int64(len(text)))
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fault.New(fault.Code(err), err.Error())
	}
	return nil
}

func openRegular(path string, flags int) (*os.File, error) {
	file, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "open", Path: path, Err: syscall.EINVAL}
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}
