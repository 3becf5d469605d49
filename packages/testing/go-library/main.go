// Command go-library lists what a module uses of Go's library that its oldest supported version does not have: the `go` directive
// of a module bounds the language only. A newer compiler says in the folder `api` of its sources what each version has added.
//
//	go run . FOLDER     of a module whose go.mod names the oldest version
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"sort"
	"strconv"
	"strings"
)

// The form of one line for a package: {{.ImportPath}} is one of tests, too.
const listed = `{{if .Module}}{{.Module.Main}}{{else}}false{{end}}|{{.ImportPath}}|{{.Export}}|{{.Dir}}|{{join .GoFiles ","}}`

var (
	directive = regexp.MustCompile(`(?m)^go 1\.(\d+)`)
	versions  = regexp.MustCompile(`go1\.(\d+)\.txt$`)
	// `pkg net/http, method (*ResponseController) Flush() error #54136`, perhaps for one platform: `pkg syscall (linux-amd64), const …`.
	method = regexp.MustCompile(`^pkg (\S+)(?: \([^)]*\))?, method \(\*?(\w+)(?:\[[^\]]*\])?\) (\w+)`)
	field  = regexp.MustCompile(`^pkg (\S+)(?: \([^)]*\))?, type (\w+) (?:struct|interface), (\w+)`)
	symbol = regexp.MustCompile(`^pkg (\S+)(?: \([^)]*\))?, (?:func|type|var|const) (\w+)`)
)

func main() {
	if len(os.Args) != 2 {
		fail("usage: go run . FOLDER")
	}
	folder := os.Args[1]
	text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	check(err)
	found := directive.FindSubmatch(text)
	if found == nil {
		fail("%s/go.mod names no version of Go", folder)
	}
	oldest, _ := strconv.Atoi(string(found[1]))
	newer := additions(oldest)
	uses := map[string]bool{}
	inspect(folder, func(where token.Position, name string) {
		if version, ok := newer[name]; ok {
			uses[fmt.Sprintf("%s:%d: %s is of Go 1.%d, and 1.%d is to build this", where.Filename, where.Line, name, version, oldest)] = true
		}
	})
	lines := make([]string, 0, len(uses))
	for line := range uses {
		lines = append(lines, line)
	}
	sort.Strings(lines)
	for _, line := range lines {
		fmt.Println(line)
	}
	if len(lines) > 0 {
		os.Exit(1)
	}
}

// additions to the library after a version, with the version of each. A compiler of that very version has no such list. Some
// names are listed again, with another type or for another platform.
func additions(oldest int) map[string]int {
	files, err := filepath.Glob(filepath.Join(runtime.GOROOT(), "api", "go1*.txt"))
	check(err)
	first := map[string]int{}
	for _, path := range files {
		version := 0 // go1.txt
		if found := versions.FindStringSubmatch(path); found != nil {
			version, _ = strconv.Atoi(found[1])
		}
		file, err := os.Open(path)
		check(err)
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			name := nameOf(lines.Text())
			if before, known := first[name]; !known || version < before {
				first[name] = version
			}
		}
		check(lines.Err())
		file.Close()
	}
	for name, version := range first {
		if version <= oldest {
			delete(first, name)
		}
	}
	return first
}

// nameOf a line: `errors.Join`, `time.Time.Compare`.
func nameOf(line string) string {
	for _, form := range []*regexp.Regexp{method, field} {
		if m := form.FindStringSubmatch(line); m != nil {
			return m[1] + "." + m[2] + "." + m[3]
		}
	}
	if m := symbol.FindStringSubmatch(line); m != nil {
		return m[1] + "." + m[2]
	}
	return ""
}

// inspect reports each use of another package's name in a module, its tests included.
func inspect(folder string, report func(token.Position, string)) {
	command := exec.Command("go", "list", "-export", "-deps", "-test", "-f", listed, "./...")
	command.Dir, command.Stderr = folder, os.Stderr
	output, err := command.Output()
	check(err)
	exports := map[string]string{}
	var own [][]string
	for _, line := range strings.Split(strings.TrimSpace(string(output)), "\n") {
		parts := strings.Split(line, "|")
		exports[parts[1]] = parts[2]
		if parts[0] == "true" && !strings.HasSuffix(parts[1], ".test") && parts[4] != "" {
			own = append(own, parts)
		}
	}
	files := token.NewFileSet()
	for _, parts := range own {
		variant := ""
		if _, test, ok := strings.Cut(parts[1], " "); ok {
			variant = " " + test
		}
		imports := importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) {
			export := exports[path+variant]
			if export == "" {
				export = exports[path]
			}
			data, err := os.ReadFile(export)
			return io.NopCloser(bytes.NewReader(data)), err
		})
		var parsed []*ast.File
		for _, name := range strings.Split(parts[4], ",") {
			file, err := parser.ParseFile(files, filepath.Join(parts[3], name), nil, 0)
			check(err)
			parsed = append(parsed, file)
		}
		info := &types.Info{
			Uses:       map[*ast.Ident]types.Object{},
			Selections: map[*ast.SelectorExpr]*types.Selection{},
			Types:      map[ast.Expr]types.TypeAndValue{},
		}
		config := types.Config{Importer: imports}
		pkg, err := config.Check(parts[1], files, parsed, info)
		check(err)
		for identifier, object := range info.Uses {
			if object.Pkg() != nil && object.Pkg() != pkg && object.Parent() == object.Pkg().Scope() {
				report(files.Position(identifier.Pos()), object.Pkg().Path()+"."+object.Name())
			}
		}
		for selector, selection := range info.Selections {
			object := selection.Obj()
			if object.Pkg() != nil && object.Pkg() != pkg {
				report(files.Position(selector.Sel.Pos()), object.Pkg().Path()+"."+receiver(selection)+"."+object.Name())
			}
		}
		for expression, of := range info.Types {
			literal, ok := expression.(*ast.CompositeLit)
			named, isNamed := deref(of.Type).(*types.Named)
			if !ok || !isNamed || named.Obj().Pkg() == nil || named.Obj().Pkg() == pkg {
				continue
			}
			for _, element := range literal.Elts {
				if pair, ok := element.(*ast.KeyValueExpr); ok {
					if key, ok := pair.Key.(*ast.Ident); ok {
						report(files.Position(key.Pos()), named.Obj().Pkg().Path()+"."+named.Obj().Name()+"."+key.Name)
					}
				}
			}
		}
	}
}

// receiver is the name of the type that a method or field was selected of.
func receiver(selection *types.Selection) string {
	of := selection.Recv()
	// An embedded type's own: the last step of the way there.
	for _, at := range selection.Index()[:len(selection.Index())-1] {
		if structure, ok := deref(of).Underlying().(*types.Struct); ok {
			of = structure.Field(at).Type()
		}
	}
	if named, ok := deref(of).(*types.Named); ok {
		return named.Obj().Name()
	}
	return ""
}

func deref(of types.Type) types.Type {
	if pointer, ok := of.(*types.Pointer); ok {
		return pointer.Elem()
	}
	return of
}

func check(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func fail(format string, args ...interface{}) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(2)
}
