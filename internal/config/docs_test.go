package config

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// docBlock is a fenced block of a page.
type docBlock struct{ language, name, text string }

// docBlocks returns the fenced blocks of a page; the name is that of the first line's comment, "# pointsman.yaml".
func docBlocks(page string) []docBlock {
	var all []docBlock
	for _, m := range regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```").FindAllStringSubmatch(page, -1) {
		b := docBlock{language: m[1], text: m[2]}
		first, _, _ := strings.Cut(b.text, "\n")
		b.name, _ = strings.CutPrefix(first, "# ")
		all = append(all, b)
	}
	return all
}

// TestDocsYAML loads every configuration and endpoints file that the documentation shows. A block is one when its first line
// is a comment with a file's name; refused.yaml must be refused with exactly the text block after it. The two pages of this
// package may have no other YAML.
func TestDocsYAML(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 2 {
		t.Fatalf("%d pages (%v)", len(pages), err)
	}
	loaded := 0
	for _, page := range append(pages, "../../README.md") {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Chdir(docFolder(t))
			blocks := docBlocks(string(raw))
			for i, b := range blocks {
				if b.language != "yaml" && b.name != "endpoints.txt" {
					continue
				}
				switch {
				case strings.HasSuffix(b.name, "endpoints.yaml") || b.name == "endpoints.txt":
					write(t, b.name, b.text)
					if urls, err := ReadEndpoints(b.name); err != nil || len(urls) == 0 {
						t.Errorf("%s: %v %v\n%s", b.name, urls, err, b.text)
					}
				case b.name == "refused.yaml":
					_, err := Parse(b.name, []byte(b.text))
					if err == nil || i+1 == len(blocks) {
						t.Fatalf("accepted:\n%s", b.text)
					}
					if diff := cmp.Diff(blocks[i+1].text, err.Error()+"\n"); diff != "" {
						t.Errorf("the page says something else (-page +program):\n%s", diff)
					}
				case b.name == "pointsman.yaml" || b.name == "keys.yaml":
					write(t, b.name, b.text)
					if c, err := Load(b.name); err != nil || len(c.Warnings) > 0 {
						t.Errorf("%v %v\n%s", err, c, b.text)
					}
				default:
					if name := filepath.Base(page); name == "config.md" || name == "discovery.md" {
						t.Errorf("a block that no test reads:\n%s", b.text)
					}
					continue
				}
				loaded++
			}
		})
	}
	if loaded < 9 {
		t.Errorf("%d blocks were read, want 9 at least", loaded)
	}
}

// docFolder is a folder with the files beside which the pages' configurations stand.
func docFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "secrets"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "secrets", "chat"), "key-of-the-chat-pool\n")
	return dir
}

// The page lists every key, in the order of the file, with the default that an empty file gets, and nothing that is no key.
func TestDocsKeys(t *testing.T) {
	raw, err := os.ReadFile("../../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	defaults := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_\\[\\].]+)` \\|([^|]*)\\| ([^|]+) \\| ([^|]+) \\|$").FindAllStringSubmatch(string(raw), -1) {
		keys = append(keys, m[1])
		defaults[m[1]] = strings.Trim(strings.TrimSpace(m[2]), "`")
		if slices.Contains(keys, defaults[m[1]]) {
			defaults[m[1]] = "" // it follows that key
		}
	}
	if !slices.IsSorted(keysInOrder(keys)) {
		t.Errorf("the rows are not in the order of the tables: %v", keys)
	}
	slices.Sort(keys)
	if diff := cmp.Diff(Keys(), keys); diff != "" {
		t.Errorf("docs/config.md and the keys differ (-program +page):\n%s", diff)
	}
	// Each default, written out, must read as the default.
	for key, text := range defaults {
		if text == "" || text == "required" || strings.Contains(text, " ") {
			continue
		}
		c, err := Parse("x.yaml", []byte(withKey(key, text)))
		if err != nil {
			t.Errorf("%s: %s: %v", key, text, err)
			continue
		}
		want := Default()
		want.Path, want.Pools = "x.yaml", []Pool{DefaultPool("a")}
		want.Pools[0].Endpoints = []string{"http://h:1"}
		if strings.HasPrefix(key, "peers.") {
			want.Peers = &Peers{Listen: defaultPeersListen, DNS: "peer:9091"}
		}
		if strings.HasPrefix(key, "extproc.") {
			want.ExtProc = &ExtProc{Listen: defaultExtProcListen}
		}
		if diff := cmp.Diff(want, c, cmp.AllowUnexported(Secret{})); diff != "" {
			t.Errorf("the page's default of %s is not the program's (-program +page):\n%s", key, diff)
		}
	}
}

// keysInOrder replaces keys by their rank in the tables, so that sorted means in order.
func keysInOrder(keys []string) []int {
	order := keysUnder("", topFields(&Config{}))
	ranks := make([]int, len(keys))
	for i, k := range keys {
		ranks[i] = slices.Index(order, k)
	}
	return ranks
}

// withKey is a small configuration that sets one key.
func withKey(key, text string) string {
	pool := "pools:\n  - name: a\n    endpoints: [http://h:1]\n"
	switch group, name, _ := strings.Cut(key, "[]."); {
	case group == "pools":
		if outer, inner, nested := strings.Cut(name, "."); nested {
			return pool + "    " + outer + ": {" + inner + ": " + text + "}\n"
		}
		return pool + "    " + name + ": " + text + "\n"
	case group == "models":
		return pool + "models: [{name: m, " + name + ": " + text + "}]\n"
	case strings.HasPrefix(key, "peers."):
		return pool + "peers: {dns: \"peer:9091\", " + strings.TrimPrefix(key, "peers.") + ": \"" + text + "\"}\n"
	case strings.Contains(key, "."):
		outer, inner, _ := strings.Cut(key, ".")
		return pool + outer + ": {" + inner + ": " + text + "}\n"
	}
	return pool + key + ": " + text + "\n"
}

// Every error finds its way through errors.As from the joined error.
func TestErrorsUnwrap(t *testing.T) {
	_, err := Parse("x.yaml", []byte("limit: 60\nadmin: 9090\n"))
	var all Errors
	var one *Error
	if !errors.As(err, &all) || len(all) != 3 || !errors.As(err, &one) || one.Key != "pools" && one.Line != 1 {
		t.Errorf("%v", err)
	}
}
