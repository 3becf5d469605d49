package store

import (
	"io"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"releap/guest/internal/fault"
	"releap/guest/internal/jsonlite"
)

const (
	mfdCloexec = 0x01
	// mfdExec is needed where sysctl vm.memfd_noexec is set; kernels before 6.3 reject it.
	mfdExec = 0x10

	programMaxBytes = 256 << 20
)

// Offer of the program that serves mounts: it follows as the input of the same request, and is read only if the agent does not
// have it.
type Offer struct {
	digest string
	bytes  int64
}

// Input of a request.
type Input interface {
	Receive(stop <-chan struct{}) ([]byte, error)
	Consumed(n int)
}

// ParseOffer of a request; nil where the host makes none.
func ParseOffer(v jsonlite.Value) (*Offer, error) {
	if !v.Present() {
		return nil, nil
	}
	digest, err := v.Get("digest").Text("store_program.digest")
	if err != nil {
		return nil, err
	}
	bytes, err := v.Get("bytes").Int("store_program.bytes", 0, 1, programMaxBytes)
	if err != nil {
		return nil, err
	}
	return &Offer{digest: digest, bytes: bytes}, nil
}

// program lies in memory (memfd), beside all file systems of the sandbox.
type program struct {
	digest string
	file   *os.File
	users  int // requests that use it, under Mounts.mu
}

// path by which another process executes it.
func (p *program) path() string {
	return "/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + strconv.Itoa(int(p.file.Fd()))
}

// use answers the program that is offered, which is received unless it is there. One at a time: of two requests at once, the second
// finds what the first has received. The caller gives it back with leave.
func (m *Mounts) use(offer *Offer, in Input) (*program, error) {
	m.receiving.Lock()
	defer m.receiving.Unlock()
	m.mu.Lock()
	current := m.program
	if current != nil && (offer == nil || offer.digest == current.digest) {
		current.users++
		m.mu.Unlock()
		return current, nil
	}
	m.mu.Unlock()
	if offer == nil {
		return nil, fault.New(fault.State, "the host has not sent the program that serves mounts: its version is too old for this sandbox")
	}
	file, err := receive(offer, in)
	if err != nil {
		return nil, err
	}
	made := &program{digest: offer.digest, file: file, users: 1}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.program != nil && m.program.users == 0 {
		m.program.file.Close()
	}
	m.program = made
	return made, nil
}

func (m *Mounts) leave(p *program) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p.users--
	if p.users == 0 && p != m.program { // another has replaced it
		p.file.Close()
	}
	m.freeUnused()
}

// freeUnused frees the program's memory when nothing is mounted. Processes that run keep what they execute. Called under the lock.
func (m *Mounts) freeUnused() {
	if m.program != nil && m.program.users == 0 && len(m.paths) == 0 {
		m.program.file.Close()
		m.program = nil
	}
}

func receive(offer *Offer, in Input) (*os.File, error) {
	file, err := memoryFile()
	if err != nil {
		return nil, fault.New(fault.Code(err), "memory for the program that serves mounts: "+err.Error())
	}
	var total int64
	for {
		data, err := in.Receive(nil)
		if err == io.EOF {
			break
		}
		if err == nil {
			total += int64(len(data))
			if total <= offer.bytes {
				_, err = file.Write(data)
			}
		}
		if err != nil {
			file.Close()
			return nil, err
		}
		in.Consumed(len(data))
	}
	if total != offer.bytes {
		file.Close()
		return nil, fault.New(fault.Invalid, "the program that serves mounts has "+strconv.FormatInt(total, 10)+" bytes, announced were "+
			strconv.FormatInt(offer.bytes, 10))
	}
	return file, nil
}

func memoryFile() (*os.File, error) {
	name := [...]byte{'s', 't', 'o', 'r', 'e', 'm', 'o', 'u', 'n', 't', 0}
	for _, flags := range []uintptr{mfdCloexec | mfdExec, mfdCloexec} {
		fd, _, errno := syscall.Syscall(sysMemfdCreate, uintptr(unsafe.Pointer(&name[0])), flags, 0)
		if errno == 0 {
			return os.NewFile(fd, "storemount"), nil
		}
		if errno != syscall.EINVAL {
			return nil, errno
		}
	}
	return nil, syscall.EINVAL
}
