// Package archtest holds the dependency rules of ARCHITECTURE.md as a test: which package may import which, what the
// core may not touch, and the size limits that keep files readable. It has no code of its own.
package archtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "pointsman.dev/pointsman"

// level says how far up a package sits. A package imports only packages of a lower level; the exceptions are in
// sameLevel, each with its reason.
var level = map[string]int{
	"internal/route": 0, "internal/prefix": 0, "internal/ledger": 0, "internal/health": 0, "internal/engine": 0,
	"internal/spelling": 1, "internal/shell": 1, "internal/books": 1, "internal/sim": 2, "internal/sim/trace": 3, "internal/sim/report": 3,
	"internal/llmapi": 2, "internal/config": 2, "internal/discover": 2, "internal/routecase": 2,
	"internal/discover/discovertest": 3, "internal/testkit/kubetest": 3, "internal/testkit/certs": 2, "internal/testkit/loopback": 2, "internal/testkit/records": 2, "internal/testkit/pace": 2,
	"internal/command": 3, "internal/pool": 3, "internal/telemetry": 3, "internal/testkit": 3, "internal/body": 3,
	"internal/flight": 4,
	"internal/proxy":  5, "internal/scrape": 5, "internal/dash": 5, "internal/admin": 5, "internal/vllmsim": 5,
	"internal/extproc": 5, "internal/discover/kube": 5, "internal/peers": 5, "internal/peers/wire": 4, "internal/simcmd": 5, "internal/importer": 5, "internal/manifests": 5,
	"internal/app":  6,
	"cmd/pointsman": 7, "cmd/vllmsim": 7,
}

// sameLevel lists the imports between packages of one level.
var sameLevel = map[[2]string]string{
	{"internal/telemetry", "internal/pool"}: "the gauges of /metrics are read from the pool's status at scrape time",
	{"internal/admin", "internal/dash"}:     "the admin listener serves the dashboard",
}

// owners names the one package (or the few) that may import a family of modules directly.
var owners = []struct {
	module string
	by     []string
	reason string
}{
	{"github.com/goccy/go-yaml", []string{"internal/config", "internal/discover", "internal/importer"}, "one place turns YAML into types; the importer reads other programs' files, whose every key needs its place"},
	{"github.com/prometheus/client_golang", []string{"internal/telemetry"}, "others record through typed methods"},
	{"google.golang.org/grpc", []string{"internal/extproc", "internal/peers", "internal/peers/wire"}, "two services, each behind its own package"},
	{"github.com/envoyproxy/go-control-plane", []string{"internal/extproc"}, "Envoy's types stay at the edge"},
	{"k8s.io", []string{"internal/discover/kube"}, "one package knows Kubernetes; it costs 18 MB and pays with a watch that is right"},
	{"github.com/cespare/xxhash", []string{"internal/prefix", "internal/llmapi"}, "block identity is decided once"},
	{"golang.org/x/tools", []string{"internal/routecase"}, "txtar is the format of routing cases"},
	{"text/template", nil, "templates disable the linker's dead-code elimination: the binary grows by 22 MB"},
	{"html/template", nil, "as text/template"},
}

// coreForbidden are the std packages that would give the core I/O, clocks, goroutines or logging.
var coreForbidden = []string{"net", "net/http", "os", "io", "log", "log/slog", "context", "sync", "sync/atomic", "math/rand",
	"math/rand/v2", "bufio", "encoding/json", "syscall", "runtime"}

type pkg struct {
	ImportPath string
	Dir        string
	Imports    []string
	GoFiles    []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Imports,GoFiles", "./...")
	cmd.Dir = root(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("listing packages: %v\n%s", err, stderr.String())
	}
	var list []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p pkg
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		p.ImportPath = strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		if len(p.GoFiles) > 0 { // folders with tests only import what they like
			list = append(list, p)
		}
	}
	if len(list) < 10 {
		t.Fatalf("found %d packages: the listing is broken", len(list))
	}
	return list
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestLevels(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range packages(t) {
		seen[p.ImportPath] = true
		mine, ok := level[p.ImportPath]
		if !ok {
			t.Errorf("%s has no level: add it to the table", p.ImportPath)
			continue
		}
		for _, imp := range p.Imports {
			dep, ours := strings.CutPrefix(imp, module+"/")
			if !ours {
				continue
			}
			if theirs := level[dep]; theirs > mine || theirs == mine && sameLevel[[2]string{p.ImportPath, dep}] == "" {
				t.Errorf("%s (level %d) imports %s (level %d)", p.ImportPath, mine, dep, theirs)
			}
		}
	}
	for name := range level {
		if _, err := os.Stat(filepath.Join(root(t), name)); err == nil && !seen[name] && name != "internal/testkit" {
			t.Logf("%s is in the table but has no code", name)
		}
	}
}

func TestCoreIsPure(t *testing.T) {
	for _, p := range packages(t) {
		if l, ok := level[p.ImportPath]; !ok || l != 0 {
			continue
		}
		for _, imp := range p.Imports {
			if slices.Contains(coreForbidden, imp) {
				t.Errorf("%s imports %s: the core takes time, seed and data as arguments", p.ImportPath, imp)
			}
			hash := p.ImportPath == "internal/prefix" && strings.Contains(imp, "xxhash")
			if strings.Contains(imp, ".") && !strings.HasPrefix(imp, module) && !hash {
				t.Errorf("%s imports %s: the core stands on the standard library", p.ImportPath, imp)
			}
		}
		for _, file := range p.GoFiles {
			checkPure(t, filepath.Join(p.Dir, file))
		}
	}
}

// checkPure finds clock reads and goroutines, which need no forbidden import.
func checkPure(t *testing.T, path string) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			t.Errorf("%s: a goroutine in the core", fset.Position(n.Pos()))
		case *ast.SelectorExpr:
			if id, ok := n.X.(*ast.Ident); ok && id.Name == "time" &&
				slices.Contains([]string{"Now", "Sleep", "After", "Since", "Until", "Tick", "NewTimer", "NewTicker", "AfterFunc"}, n.Sel.Name) {
				t.Errorf("%s: time.%s in the core", fset.Position(n.Pos()), n.Sel.Name)
			}
		}
		return true
	})
}

func TestOwners(t *testing.T) {
	for _, p := range packages(t) {
		for _, o := range owners {
			for _, imp := range p.Imports {
				if (imp == o.module || strings.HasPrefix(imp, o.module+"/")) && !slices.Contains(o.by, p.ImportPath) {
					t.Errorf("%s imports %s: %s", p.ImportPath, imp, o.reason)
				}
			}
		}
	}
}

func TestEveryDependencyHasAReason(t *testing.T) {
	reasons, err := os.ReadFile(filepath.Join(root(t), "deps.txt"))
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	direct := map[string]bool{}
	for sc := bufio.NewScanner(bytes.NewReader(mod)); sc.Scan(); {
		f := strings.Fields(sc.Text())
		if len(f) >= 2 && strings.Contains(f[0], ".") && strings.HasPrefix(f[1], "v") && !strings.Contains(sc.Text(), "// indirect") {
			direct[f[0]] = true
		}
	}
	for sc := bufio.NewScanner(bytes.NewReader(reasons)); sc.Scan(); {
		name, reason, _ := strings.Cut(sc.Text(), " ")
		if name == "" || strings.HasPrefix(name, "#") {
			continue
		}
		if !direct[name] {
			t.Errorf("deps.txt names %s, which go.mod does not require directly", name)
		}
		if strings.TrimSpace(reason) == "" {
			t.Errorf("deps.txt gives no reason for %s", name)
		}
		delete(direct, name)
	}
	for name := range direct {
		t.Errorf("go.mod requires %s, deps.txt has no reason for it", name)
	}
}

// TestSizes holds files to 500 lines and functions to 80: what is longer is two things.
func TestSizes(t *testing.T) {
	walkGo(t, func(path string, src []byte) {
		if n := bytes.Count(src, []byte("\n")); n > 500 {
			t.Errorf("%s: %d lines, at most 500", path, n)
		}
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, src, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				from, to := fset.Position(fn.Pos()).Line, fset.Position(fn.End()).Line
				if to-from+1 > 80 {
					t.Errorf("%s:%d: func %s has %d lines, at most 80", path, from, fn.Name.Name, to-from+1)
				}
			}
		}
	})
}

// TestDocs demands a package doc everywhere and a comment on every exported function, type and method.
func TestDocs(t *testing.T) {
	hasDoc := map[string]bool{}
	walkGo(t, func(path string, src []byte) {
		dir := filepath.Dir(path)
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, src, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		hasDoc[dir] = hasDoc[dir] || f.Doc != nil
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) {
					t.Errorf("%s: %s has no comment", path, d.Name.Name)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if ts, ok := s.(*ast.TypeSpec); ok && ts.Name.IsExported() && d.Doc == nil && ts.Doc == nil {
						t.Errorf("%s: type %s has no comment", path, ts.Name.Name)
					}
				}
			}
		}
	})
	for dir, ok := range hasDoc {
		if !ok {
			t.Errorf("%s has no package doc", dir)
		}
	}
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	id, ok := typ.(*ast.Ident)
	return ok && id.IsExported()
}

// TestHabits greps for what reviews would otherwise have to find again and again.
func TestHabits(t *testing.T) {
	banned := []struct{ text, reason string }{
		{"failed to", "errors say what was being done: `scraping 10.0.0.3:8000: status 503`"},
		{"func init()", "no registration at a distance"},
		{"http.DefaultClient", "it has no time limit"},
		{"http.DefaultTransport", "it honours proxy variables and keeps idle connections for 90 s"},
	}
	walkGo(t, func(path string, src []byte) {
		if strings.Contains(path, "archtest") {
			return
		}
		isTest := strings.HasSuffix(path, "_test.go")
		for i, line := range strings.Split(string(src), "\n") {
			for _, b := range banned {
				if !isTest && strings.Contains(line, b.text) {
					t.Errorf("%s:%d: %q: %s", path, i+1, b.text, b.reason)
				}
			}
		}
	})
	for _, p := range packages(t) {
		if slices.Contains([]string{"util", "common", "types", "helpers", "interface", "base", "core", "manager"}, filepath.Base(p.ImportPath)) {
			t.Errorf("%s: a package is named by what it gives", p.ImportPath)
		}
	}
}

func walkGo(t *testing.T, visit func(path string, src []byte)) {
	t.Helper()
	n := 0
	err := filepath.WalkDir(root(t), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root(t) || d.Name() == "testdata" || d.Name() == "node_modules" || d.Name() == "out") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".go") {
			src, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			n++
			if bytes.HasPrefix(src, []byte("// Code generated by protoc-gen-go")) {
				return nil // nobody reads it: peers.proto beside it is what to read
			}
			visit(path, src)
		}
		return nil
	})
	if err != nil || n == 0 {
		t.Fatalf("walking the tree: %v, %d files", err, n)
	}
}
