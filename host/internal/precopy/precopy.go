// Package precopy copies a VMM's memory while its guest runs.
package precopy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// Limits of a batch of pages, which fits a processor's cache until it is written.
	batchBytes = 1 << 20
	batchParts = 64
	// From this size on two threads copy, if that leaves a processor to the process.
	parallelBytes   = 8 << 20
	nicenessPrecopy = 10
	scanRegions     = 4096
	nearPages       = 16
	// Scanned in one call, which takes half a millisecond: changes of the process's mappings wait for it.
	scanBytes = 16 << 20
)

// pageBytes is the unit of what is tracked and copied.
var pageBytes = uintptr(os.Getpagesize())

// windowBytes of the memory are scanned and then copied, before the next ones.
var windowBytes uintptr = 256 << 20

// Precopy copies the memory of process PID that lies at ADDRESS for BYTES bytes to TARGET while the process runs, so that few pages
// are left to copy when it is stopped. TARGET is a file, or as "PID:ADDRESS" the memory of another process, which maps the same
// initial content. First it prints how it learns what is written meanwhile: "tracked\n",
// "marked\n" or "untracked\n", which the argument "untracked" asks for. For each line "all\n" it copies all anonymous pages (those
// of a private mapping that the process has written to), for "rest\n" those that were written to since they were last copied, and
// for "last\n" the same of a process that is stopped meanwhile. It prints "copied BYTES\n" after each. For "count\n" it prints
// as many as "rest" would copy, and copies none.
//
// Tracked (Linux 6.7): the process is write-protected page by page with userfaultfd(2) in its asynchronous mode: the kernel lifts
// the protection of a page itself at the first write, in a microsecond, and PAGEMAP_SCAN finds these pages. No page tables are
// copied, so a stop takes as long for a process that has written gigabytes as for one that has written little. Tracking
// outlives this process: a later one that is not told "all" continues where this one has ended.
//
// Marked (older kernels with CONFIG_MEM_SOFT_DIRTY, as Debian's): marks of written pages cannot be read and reset in one step
// while the process runs. "all" resets them, "rest" copies nothing, and "last" copies what was marked since "all".
//
// Untracked: "last" copies everything.
func Precopy(args []string) error {
	isUntracked := len(args) == 5 && args[4] == untracked
	if len(args) != 4 && !isUntracked {
		return errors.New("usage: hostd precopy PID ADDRESS BYTES TARGET [untracked]")
	}
	numbers, err := parseNumbers(args[:3])
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	copier, err := newPreCopier(int(numbers[0]), uintptr(numbers[1]), uintptr(numbers[2]), args[3])
	if err != nil {
		return err
	}
	how := untracked
	if !isUntracked {
		if how, err = copier.begin(); err != nil {
			return err
		}
	}
	fmt.Println(how)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		order := lines.Text()
		niceness, known := orders[order]
		if !known {
			return fmt.Errorf("unknown order %q", order)
		}
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, niceness)
		copied, err := copier.follow(how, order)
		if err != nil {
			return err
		}
		fmt.Printf("copied %d\n", copied)
	}
	return lines.Err()
}

const (
	tracked   = "tracked"
	marked    = "marked"
	untracked = "untracked"
)

// orders have a niceness each: while the process runs, its threads have priority; while it is stopped, it waits for this one.
var orders = map[string]int{"all": nicenessPrecopy, "rest": nicenessPrecopy, "count": nicenessPrecopy, "last": -10}

// begin gives how it learns what is written.
func (c *preCopier) begin() (string, error) {
	err := c.track()
	if !errors.Is(err, errUnsupported) {
		return tracked, err
	}
	if canMark() {
		return marked, nil
	}
	return untracked, nil
}

func (c *preCopier) follow(how, order string) (int64, error) {
	if order == "all" {
		c.isWhole = true
		defer c.target.withSmallPages()()
	}
	switch how + " " + order {
	case "tracked all":
		return c.copyAll()
	case "tracked count":
		return c.countRest()
	case "tracked rest", "tracked last":
		return c.copyRest()
	case "marked all":
		if err := resetMarks(c.pid); err != nil {
			return 0, err
		}
		return c.copyEntries(isOwn)
	case "marked last":
		return c.copyEntries(func(entry uint64) bool { return isOwn(entry) && entry&entryMarked != 0 })
	case "untracked last":
		return c.copyEntries(isOwn)
	default:
		return 0, nil
	}
}

func parseNumbers(args []string) ([3]uint64, error) {
	var numbers [3]uint64
	for index, arg := range args {
		value, err := strconv.ParseUint(arg, 10, 63)
		if err != nil {
			return numbers, fmt.Errorf("not a number: %q", arg)
		}
		numbers[index] = value
	}
	return numbers, nil
}

type preCopier struct {
	pid        int
	start, end uintptr
	pagemap    *os.File
	target     copyTarget
	// Parts that the process does not map from the file that the target has the content of: holes of it.
	anonymous []region
	// The target is a copy of that file, and not of changes of it: a hole of it stays one where the process has zeros.
	isWhole bool
	// Output buffer of PAGEMAP_SCAN. On the heap, which does not move.
	found []region
}

func newPreCopier(pid int, start, size uintptr, target string) (*preCopier, error) {
	c := &preCopier{pid: pid, start: start, end: start + size, found: make([]region, scanRegions)}
	if size == 0 || start%pageBytes != 0 || size%pageBytes != 0 || c.end < start {
		return nil, fmt.Errorf("not a range of pages: %#x bytes at %#x", size, start)
	}
	var err error
	if c.pagemap, err = os.Open(fmt.Sprintf("/proc/%d/pagemap", pid)); err != nil {
		return nil, err
	}
	if c.target, err = openTarget(target, size); err != nil {
		return c, err
	}
	c.anonymous, err = anonymousRegions(pid)
	return c, err
}

// Anonymous pages of the process. Pages that it has never touched are not protected: that would take a page table entry for
// each of them, which reads like a swapped page in /proc/PID/pagemap. Nor is the kernel's page of zeros, which it has where it has
// only read anonymous memory.
var own = scanArg{flags: scanProtect | scanCheckTracked, inverted: pageOfFile | pageZero, mask: pageOfFile | pageZero,
	anyOf: pagePresent | pageSwapped, returned: pagePresent}

// copyAll write-protects the pages as it finds them: pages that are written to while they are copied belong to the rest.
func (c *preCopier) copyAll() (int64, error) {
	return c.eachWindow(func(from, end uintptr) ([]region, error) { return c.find(own, from, end) })
}

func (c *preCopier) copyRest() (int64, error) {
	return c.eachWindow(func(from, end uintptr) ([]region, error) { return c.findWritten(from, end, own.flags) })
}

func (c *preCopier) countRest() (int64, error) {
	var total int64
	for from := c.start; from < c.end; from += windowBytes {
		regions, err := c.findWritten(from, lower(c.end, from+windowBytes), own.flags&^scanProtect)
		if err != nil {
			return 0, err
		}
		for _, one := range regions {
			total += int64(one.end - one.start)
		}
	}
	return total, nil
}

// findWritten gives the anonymous pages that are not protected.
func (c *preCopier) findWritten(from, end uintptr, flags uint64) ([]region, error) {
	// With exactly these categories the kernel looks at the page tables alone, which is many times as fast as to look at each
	// page. It finds untouched pages and those of the file, too.
	unprotected := scanArg{flags: scanCheckTracked, mask: pageWritten, returned: pageWritten}
	candidates, err := c.find(unprotected, from, end)
	if err != nil {
		return nil, err
	}
	written := own
	written.mask |= pageWritten
	written.flags = flags
	var regions []region
	for _, one := range joinNear(candidates) {
		found, err := c.find(written, one.start, one.end)
		if err != nil {
			return nil, err
		}
		regions = append(regions, found...)
	}
	return regions, nil
}

// eachWindow copies what find gives for each window of the memory: a guest that writes to every other page of a large memory must
// not make this process as large.
func (c *preCopier) eachWindow(find func(from, end uintptr) ([]region, error)) (int64, error) {
	var total int64
	for from := c.start; from < c.end; from += windowBytes {
		regions, err := find(from, lower(c.end, from+windowBytes))
		if err != nil {
			return 0, err
		}
		copied, err := c.copy(regions)
		if err != nil {
			return 0, err
		}
		total += copied
	}
	return total, nil
}

// joinNear joins regions with little between them: to look at a few pages more takes less time than another call.
func joinNear(regions []region) []region {
	var joined []region
	for _, one := range regions {
		if last := len(joined) - 1; last >= 0 && one.start-joined[last].end <= nearPages*pageBytes {
			joined[last].end = one.end
		} else {
			joined = append(joined, one)
		}
	}
	return joined
}

// find gives all pages that match.
func (c *preCopier) find(arg scanArg, from, end uintptr) ([]region, error) {
	var found []region
	for from < end {
		arg.start, arg.end = from, lower(end, from+scanBytes)
		count, err := c.scan(&arg, scanRegions)
		if err != nil {
			return nil, err
		}
		found = append(found, c.found[:count]...)
		if arg.walkEnd <= from {
			return nil, fmt.Errorf("PAGEMAP_SCAN does not advance beyond %#x", from)
		}
		from = arg.walkEnd
	}
	return found, nil
}

// copy writes pages to the places in the target that they have in the memory.
func (c *preCopier) copy(regions []region) (int64, error) {
	var total int64
	var batches [][]region
	var batch []region
	var batched uintptr
	for _, one := range regions {
		total += int64(one.end - one.start)
		for one.start < one.end {
			part := region{start: one.start, end: lower(one.end, one.start+batchBytes-batched)}
			batch = append(batch, part)
			batched += part.end - part.start
			one.start = part.end
			if batched == batchBytes || len(batch) == batchParts {
				batches = append(batches, batch)
				batch, batched = nil, 0
			}
		}
	}
	if len(batch) > 0 {
		batches = append(batches, batch)
	}
	if total < parallelBytes || runtime.NumCPU() < 3 {
		next := int64(-1)
		return total, c.copyBatches(batches, &next)
	}
	next := int64(-1)
	var errs [2]error
	var working sync.WaitGroup
	for index := range errs {
		working.Add(1)
		go func(index int) {
			defer working.Done()
			// The thread ends with this function.
			runtime.LockOSThread()
			_ = unix.Setpriority(unix.PRIO_PROCESS, 0, nicenessPrecopy)
			errs[index] = c.copyBatches(batches, &next)
		}(index)
	}
	working.Wait()
	if errs[0] != nil {
		return 0, errs[0]
	}
	return total, errs[1]
}

func (c *preCopier) copyBatches(batches [][]region, next *int64) error {
	buffer := make([]byte, batchBytes)
	for {
		index := atomic.AddInt64(next, 1)
		if index >= int64(len(batches)) {
			return nil
		}
		if err := c.copyBatch(batches[index], buffer); err != nil {
			return err
		}
	}
}

func (c *preCopier) copyBatch(batch []region, buffer []byte) error {
	remote := make([]unix.RemoteIovec, len(batch))
	size := 0
	for index, one := range batch {
		remote[index] = unix.RemoteIovec{Base: one.start, Len: int(one.end - one.start)}
		size += remote[index].Len
	}
	local := unix.Iovec{Base: &buffer[0]}
	local.SetLen(size)
	count, err := unix.ProcessVMReadv(c.pid, []unix.Iovec{local}, remote, 0)
	if err != nil {
		return fmt.Errorf("cannot read the memory of process %d: %w", c.pid, err)
	}
	if count != size {
		return fmt.Errorf("process %d has only %d of %d bytes of memory", c.pid, count, size)
	}
	for at, index := 0, 0; index < len(batch); index++ {
		end := at + remote[index].Len
		if err := c.write(buffer[at:end], batch[index].start); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// write writes the content of pages from address on to the target. A huge page that the guest has hardly used is mostly zeros, which
// would take space in the target.
func (c *preCopier) write(content []byte, address uintptr) error {
	from := 0
	flush := func(to int) error {
		if from == to {
			return nil
		}
		_, err := c.target.WriteAt(content[from:to], int64(address-c.start)+int64(from))
		return err
	}
	step := int(pageBytes)
	for page := 0; c.isWhole && page < len(content); page += step {
		if !bytes.Equal(content[page:page+step], zeros) || !c.isHole(address+uintptr(page)) {
			continue
		}
		if err := flush(page); err != nil {
			return err
		}
		from = page + step
	}
	return flush(len(content))
}

var zeros = make([]byte, pageBytes)

// isHole tells whether a page has no data in the target, nor in the file that the target has the content of.
func (c *preCopier) isHole(address uintptr) bool {
	return isWithin(c.anonymous, address) && c.target.isHole(address-c.start)
}

// isWithin tells whether one of the regions, which are in the order of their places, has the address.
func isWithin(regions []region, address uintptr) bool {
	next := sort.Search(len(regions), func(index int) bool { return regions[index].end > address })
	return next < len(regions) && regions[next].start <= address
}

func lower(a, b uintptr) uintptr {
	if a < b {
		return a
	}
	return b
}
