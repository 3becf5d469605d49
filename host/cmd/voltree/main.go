// Voltree commits, checks out and merges the tree of a volume. Each command runs to its end, prints a line of JSON on standard
// output as the last, and knows neither the control plane nor the network: blobs are files in folders, named by the hexadecimal SHA-256 of
// their bytes.
//
//	voltree commit   --root DATA --state S --out DIR
//	voltree accept   --state S ROOT
//	voltree checkout --root DATA --state S --manifest ROOTFILE --packs DIR
//	voltree merge    --root DATA --state S --manifest ROOTFILE --packs DIR --displaced L --name SUFFIX
//
// It exits with 0, or with 1 and one line on standard error that says what failed, with 2 for wrong arguments, and with 3 if a
// file system is full (the line says which path). A command that was interrupted anywhere may be repeated. Two commands at a time
// for one S are refused. With `--cgroup FILE` before the command, once for each hierarchy, it first joins the control group of that
// cgroup.procs. It runs as root: it restores owners, and reads what any guest has written.
//
// DATA is the folder that sandboxes see; sandboxes may write to it while commit runs. S is a folder for the base (the
// manifest that the tree was last equal to, and how its files looked to lstat then); it is created. In the output a digest is
// `sha256:` and 64 hexadecimal digits, a blob is {"digest","bytes"}, and a path is relative to DATA, with `\xNN` for each byte
// that is a control character or not UTF-8, and `\\` for a backslash. Paths of the output are for people.
//
// commit scans DATA, reads files that differ from the base, and writes new packs and the root into DIR:
//
//	{"root":{"digest","bytes"},"new":[BLOB…],"dropped":[DIGEST…],"packs":N,"used_bytes":N,"files":N,"changed":N,
//	 "skipped":[{"path","reason"}…],"skipped_count":N,"conflicts":[{"path","kept_as","kind"}…]}
//	{"root":"same","new":[],"dropped":[],"changed":0, and the rest as above}
//
// new are packs that the base does not name (without the root), dropped are packs of the base that the root no longer names; packs
// counts all that it names. changed counts paths that differ from the base. used_bytes is the data of files, without holes.
// files are entries that are not folders. skipped are paths that cannot be committed (sockets, devices, too deep), at
// most 100 of them. conflicts are as those of merge, of kind late-write: files that a sandbox wrote to after a merge had replaced
// them, those of earlier commits too until accept. "same" says that the tree equals the base. Otherwise the commit is pending until accept makes
// it the base; another commit forgets it, and is made against the same base. When more than 64 MiB of new packs are in DIR, it asks to store
// the first ones, in lines {"store":BLOB}: upload the pack, and write its digest as a line to standard input. It waits when 128 MiB are
// there, and removes what is stored. The result names these packs, too, and the tree may be the same after all.
//
// accept makes the pending commit the base, and forgets the conflicts that commands have printed so far: the caller has kept them. It prints
// {"root":DIGEST}, also if ROOT is the base already.
//
// checkout makes DATA equal to the manifest and the manifest the base: {"root":DIGEST,"used_bytes":N,"files":N}. DATA is
// empty or what an interrupted checkout has left; it must not be in use. A pack that it needs and that is not in DIR it asks for, in a line
// {"fetch":BLOB}: put it into DIR, and write its digest as a line to standard input. It asks for some packs (128 MiB) ahead, and removes
// a pack from DIR when what it holds is in the tree. If it is repeated, it asks again only for packs whose content is not in the tree.
//
// merge applies what the manifest has changed since the base to DATA, which sandboxes may write to meanwhile, and makes the manifest the
// base: {"applied":N,"conflicts":[{"path","kept_as","kind"}…]}. applied counts changed paths. The next commit has what is mine on top.
// L is a folder beside DATA in the same file system, for files that are swapped out; it is created. SUFFIX is 1 to 100 of
// [A-Za-z0-9._-]. Kinds of conflicts: `changed` (both have changed the file: theirs has the path, mine is kept_as, which is
// PATH.conflict-SUFFIX), `type` (likewise, where one has a folder and the other has none), `deleted` (one has removed what the other has
// changed: the changed one is at path, and kept_as is path), `attributes` (both have changed owner, mode or extended attributes: theirs are
// taken, kept_as is path), `late-write`. Conflicts of earlier merges are printed again until accept, as the answer of a command may be
// lost. It asks for packs as checkout does: those of changed segments, and those with content that the tree does not have.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/checkout"
	"releap/host/internal/volume/commit"
	"releap/host/internal/volume/displaced"
	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/merge"
	"releap/host/internal/volume/rpc"
	"releap/host/internal/volume/state"
	"releap/host/internal/volume/tree"
)

const (
	exitUsage = 2
	exitFull  = 3
)

var errUsage = errors.New("usage: voltree commit|accept|checkout|merge OPTIONS (see the documentation of host/cmd/voltree)")

var commands = map[string]func(arguments []string, peer *rpc.Peer) (interface{}, error){
	"commit":   runCommit,
	"accept":   runAccept,
	"checkout": runCheckout,
	"merge":    runMerge,
}

func main() {
	// A tree may be made to need much memory (a file of millions of holes): this process is to end then, and no sandbox. The command is
	// repeated.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	arguments, err := joinGroups(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "voltree: %s\n", err)
		os.Exit(1)
	}
	os.Exit(run(arguments, os.Stdin, os.Stdout, os.Stderr))
}

// joinGroups moves this process with all its threads into control groups, and returns the arguments after these options.
func joinGroups(arguments []string) ([]string, error) {
	for len(arguments) >= 2 && arguments[0] == "--cgroup" {
		if err := os.WriteFile(arguments[1], []byte("0"), 0); err != nil {
			return nil, err
		}
		arguments = arguments[2:]
	}
	return arguments, nil
}

func run(arguments []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(arguments) == 0 || commands[arguments[0]] == nil {
		fmt.Fprintln(stderr, errUsage)
		return exitUsage
	}
	// Files get the modes of the manifest.
	unix.Umask(0)
	result, err := commands[arguments[0]](arguments[1:], rpc.New(stdin, stdout))
	if err == nil {
		err = json.NewEncoder(stdout).Encode(result)
	}
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "voltree %s: %s\n", arguments[0], strings.ReplaceAll(err.Error(), "\n", " "))
	switch {
	case errors.Is(err, errUsage):
		return exitUsage
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return exitFull
	}
	return 1
}

// options parses the options, all of which must be given, and the arguments after them, of which there must be `rest`.
func options(command string, arguments []string, rest int, options map[string]*string) ([]string, error) {
	set := flag.NewFlagSet(command, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	for name, value := range options {
		set.StringVar(value, name, "", "")
	}
	if err := set.Parse(arguments); err != nil {
		return nil, fmt.Errorf("%w: %v", errUsage, err)
	}
	for name, value := range options {
		if *value == "" {
			return nil, fmt.Errorf("%w: --%s is missing", errUsage, name)
		}
	}
	if set.NArg() != rest {
		return nil, fmt.Errorf("%w: %d arguments after the options instead of %d", errUsage, set.NArg(), rest)
	}
	return set.Args(), nil
}

func printed(digest fmt.Stringer) string { return "sha256:" + digest.String() }

func blobs(packs []manifest.Pack) []rpc.Blob {
	list := make([]rpc.Blob, 0, len(packs))
	for _, pack := range packs {
		list = append(list, rpc.BlobOf(pack))
	}
	return list
}

type committed struct {
	Root         interface{}          `json:"root"` // a blob, or "same"
	New          []rpc.Blob           `json:"new"`
	Dropped      []string             `json:"dropped"`
	Packs        int                  `json:"packs"`
	UsedBytes    uint64               `json:"used_bytes"`
	Files        uint64               `json:"files"`
	Changed      uint64               `json:"changed"`
	Skipped      []commit.Skipped     `json:"skipped"`
	SkippedCount uint64               `json:"skipped_count"`
	Conflicts    []displaced.Conflict `json:"conflicts"`
}

func runCommit(arguments []string, peer *rpc.Peer) (interface{}, error) {
	var root, folder, out string
	_, err := options("commit", arguments, 0, map[string]*string{"root": &root, "state": &folder, "out": &out})
	if err != nil {
		return nil, err
	}
	result, err := commit.Commit(root, folder, out, peer)
	if err != nil {
		return nil, err
	}
	output := &committed{
		New: []rpc.Blob{}, Dropped: []string{},
		Root: "same", Packs: result.Packs, UsedBytes: result.UsedBytes, Files: result.Files, Changed: result.Changed,
		Skipped: append([]commit.Skipped{}, result.Skipped...), SkippedCount: result.SkippedCount,
		Conflicts: conflicts(result.Conflicts),
	}
	if result.Root == nil {
		return output, nil
	}
	output.Root = rpc.BlobOf(*result.Root)
	output.New = blobs(result.New)
	output.Dropped = make([]string, 0, len(result.Dropped))
	for _, digest := range result.Dropped {
		output.Dropped = append(output.Dropped, printed(digest))
	}
	return output, nil
}

type accepted struct {
	Root string `json:"root"`
}

func runAccept(arguments []string, _ *rpc.Peer) (interface{}, error) {
	var folder string
	rest, err := options("accept", arguments, 1, map[string]*string{"state": &folder})
	if err != nil {
		return nil, err
	}
	digest, err := manifest.ParseDigest(rest[0])
	if err != nil {
		return nil, fmt.Errorf("%w: %v", errUsage, err)
	}
	kept, err := state.Open(folder)
	if err != nil {
		return nil, err
	}
	defer kept.Close()
	if err := kept.Accept(digest.String()); err != nil {
		return nil, err
	}
	// The caller accepts a commit only when it has kept the conflicts of the commit and of merges before it.
	return accepted{printed(digest)}, displaced.Acknowledge(kept)
}

type checkedOut struct {
	Root      string `json:"root"`
	UsedBytes uint64 `json:"used_bytes"`
	Files     uint64 `json:"files"`
}

func runCheckout(arguments []string, peer *rpc.Peer) (interface{}, error) {
	var o checkout.Options
	_, err := options("checkout", arguments, 0, map[string]*string{"root": &o.Root, "state": &o.State, "manifest": &o.Manifest, "packs": &o.Packs})
	if err != nil {
		return nil, err
	}
	base, err := checkout.Checkout(o, peer)
	if err != nil {
		return nil, err
	}
	return checkedOut{"sha256:" + base.Digest, base.Root.UsedBytes, base.Root.Files}, nil
}

type merged struct {
	Applied   int                  `json:"applied"`
	Conflicts []displaced.Conflict `json:"conflicts"`
}

func runMerge(arguments []string, peer *rpc.Peer) (interface{}, error) {
	var o merge.Options
	_, err := options("merge", arguments, 0, map[string]*string{
		"root": &o.Root, "state": &o.State, "manifest": &o.Manifest, "packs": &o.Packs, "displaced": &o.Displaced, "name": &o.Suffix,
	})
	if err != nil {
		return nil, err
	}
	result, err := merge.Merge(o, peer)
	if err != nil {
		return nil, err
	}
	return merged{result.Applied, conflicts(result.Conflicts)}, nil
}

// conflicts gives them with paths for people.
func conflicts(found []displaced.Conflict) []displaced.Conflict {
	printed := make([]displaced.Conflict, 0, len(found))
	for _, conflict := range found {
		printed = append(printed, displaced.Conflict{Path: forPeople(conflict.Path), Kept: forPeople(conflict.Kept), Kind: conflict.Kind})
	}
	return printed
}

func forPeople(path string) string {
	if path == "" {
		return "."
	}
	return tree.Printable(path)
}
