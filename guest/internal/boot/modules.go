package boot

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// moduleList names the modules that the initramfs holds, one absolute path a line, in order.
const moduleList = "/lib/modules/load.txt"

// LoadModules loads the kernel modules of the initramfs, and frees their files. Errors are logged: the device that needs
// the module will be missed by name.
func LoadModules(log func(string)) {
	text, err := os.ReadFile(moduleList)
	if err != nil {
		log("releap: no kernel modules to load: " + err.Error())
		return
	}
	for _, path := range strings.Fields(string(text)) {
		if err := insertModule(path); err != nil {
			log("releap: kernel module " + path + ": " + err.Error())
		}
		_ = os.Remove(path)
	}
}

func insertModule(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	options := [1]byte{}
	_, _, errno := syscall.Syscall(sysFinitModule, file.Fd(), uintptr(unsafe.Pointer(&options[0])), 0)
	if errno != 0 && errno != syscall.EEXIST {
		return errno
	}
	return nil
}

// Modules of the guest's kernel on the system disk.
type Modules struct {
	// dir stays open: after Assemble, its path leads to what the image has there.
	dir *os.File
}

// OpenModules is called before Assemble. A kernel without modules has everything built in: nil, of which nothing is loaded.
func OpenModules() *Modules {
	var name syscall.Utsname
	if err := syscall.Uname(&name); err != nil {
		return nil
	}
	release := make([]byte, 0, len(name.Release))
	for _, c := range name.Release {
		if c == 0 {
			break
		}
		release = append(release, byte(c))
	}
	dir, err := os.Open(systemDir + "/root/lib/modules/" + string(release))
	if err != nil {
		return nil
	}
	return &Modules{dir: dir}
}

// Load loads modules by name with all that they need. A name that the kernel does not have is skipped: it is built in, or
// of another version. Called once: the folder is closed afterwards.
func (m *Modules) Load(names []string, log func(string)) {
	if m == nil {
		return
	}
	defer m.dir.Close()
	root := "/proc/self/fd/" + strconv.Itoa(int(m.dir.Fd())) + "/"
	text, err := os.ReadFile(root + "modules.dep")
	if err != nil {
		log("releap: the list of kernel modules: " + err.Error())
		return
	}
	needs := parseDependencies(string(text))
	loaded := map[string]bool{}
	for _, name := range names {
		// As modules.dep(5) has it, the last one of the list needs no other one of it.
		paths := needs[canonical(name)]
		for i := len(paths) - 1; i >= 0; i-- {
			if loaded[paths[i]] {
				continue
			}
			loaded[paths[i]] = true
			if err := insertModule(root + paths[i]); err != nil {
				log("releap: kernel module " + paths[i] + ": " + err.Error())
			}
		}
	}
}

// parseDependencies reads modules.dep(5), `kernel/a.ko: kernel/b.ko kernel/c.ko`: by its name, the path of a module and then
// those of the modules that it needs.
func parseDependencies(text string) map[string][]string {
	needs := map[string][]string{}
	for _, line := range strings.Split(text, "\n") {
		path, rest, found := strings.Cut(line, ":")
		if !found {
			continue
		}
		name := path[strings.LastIndexByte(path, '/')+1:]
		needs[canonical(strings.TrimSuffix(name, ".ko"))] = append([]string{path}, strings.Fields(rest)...)
	}
	return needs
}

// canonical name of a module, in which hyphens are underscores.
func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }
