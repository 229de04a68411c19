package importer

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"pointsman.dev/pointsman/internal/config"
)

var update = flag.Bool("update", false, "write the wanted parts of the golden files anew")

// importAll imports the files of an archive, other than those that say what is wanted, and returns what a user sees.
func importAll(files []txtar.File) (yaml, list string) {
	var in []File
	for _, f := range files {
		if !strings.HasPrefix(f.Name, "want/") {
			in = append(in, File{f.Name, f.Data})
		}
	}
	r, err := Import(in)
	var b strings.Builder
	if err != nil {
		if r != nil {
			for _, n := range r.Notes {
				b.WriteString(n.String() + "\n")
			}
		}
		return "", b.String() + err.Error() + "\n"
	}
	for _, n := range r.Notes {
		b.WriteString(n.String() + "\n")
	}
	return r.YAML, b.String()
}

// Each archive is files to import, then want/pointsman.yaml and want/list, or want/errors alone.
func TestGolden(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatal(err, len(paths))
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			a := txtar.Parse(data)
			yaml, list := importAll(a.Files)
			got := map[string]string{"want/pointsman.yaml": yaml, "want/list": list}
			if yaml == "" {
				got = map[string]string{"want/errors": list}
			} else if _, err := config.Parse("pointsman.yaml", []byte(yaml)); err != nil {
				t.Error(err)
			}
			if *update {
				rewrite(t, path, a, got)
				return
			}
			want := map[string]string{}
			for _, f := range a.Files {
				if strings.HasPrefix(f.Name, "want/") {
					want[f.Name] = string(f.Data)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func rewrite(t *testing.T, path string, a *txtar.Archive, got map[string]string) {
	t.Helper()
	var files []txtar.File
	for _, f := range a.Files {
		if !strings.HasPrefix(f.Name, "want/") {
			files = append(files, f)
		}
	}
	for _, name := range []string{"want/pointsman.yaml", "want/list", "want/errors"} {
		if text, ok := got[name]; ok {
			files = append(files, txtar.File{Name: name, Data: []byte(text)})
		}
	}
	a.Files = files
	if err := os.WriteFile(path, txtar.Format(a), 0o644); err != nil {
		t.Fatal(err)
	}
}

// No secret of a file is in the result, the list or an error.
func TestNoSecrets(t *testing.T) {
	const secret = "sk-abcdef0123456789abcdef"
	for _, text := range []string{
		"model_list:\n  - model_name: a\n    litellm_params: {model: openai/a, api_base: 'http://10.0.0.3:8000/v1', api_key: " + secret + "}\ngeneral_settings: {master_key: " + secret + "}\n",
		"model_list:\n  - model_name: a\n    litellm_params: {model: openai/a, api_base: 'http://user:" + secret + "@10.0.0.3:8000'}\n",
		"model_list:\n  - model_name: a\n    litellm_params: {model: openai/a, api_base: 'ftp://" + secret + "'}\n",
		"sglang_router --worker-urls http://10.0.0.3:8000 --api-key " + secret + "\n",
		"sglang_router --worker-urls http://10.0.0.3:8000 --port " + secret + "\n",
		"servingEngineSpec:\n  vllmApiKey: " + secret + "\n  modelSpec: [{name: a}]\nrouterSpec: {hf_token: " + secret + "}\n",
		"model_list: {" + secret + "\n",
	} {
		yaml, list := importAll(txtar.Parse([]byte("-- f --\n" + text)).Files)
		if strings.Contains(yaml+list, secret) {
			t.Errorf("the secret is shown:\n%s\n%s", yaml, list)
		}
	}
}

// Files that say more than one gateway can take are refused with one line, about them and not about a result that nobody has seen.
func TestTooMuchForOneGateway(t *testing.T) {
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	const model = "---\nkind: Pod\nmetadata: {labels: {model.aibrix.ai/name: m%d}}\nspec: {containers: [{name: vllm}]}\n"
	const entry = "  - {model_name: a%[1]d, litellm_params: {model: openai/m, api_base: 'http://h%[1]d:8000/v1'}}\n"
	for _, c := range []struct{ name, text, want string }{
		{"models of AIBrix that fit", many(256, model), ""},
		{"models of AIBrix", many(257, model), "pools: has 257 entries, more than 256"},
		{"LiteLLM's groups", "model_list:\n" + many(300, entry), "pools: has 300 entries, more than 256"},
		{"endpoints", "vllm-router --worker-urls" + many(4097, " http://h%d:8000"), "pools[0].endpoints: has 4097 entries, more than 4096"},
	} {
		r, err := Import([]File{{"a.yaml", []byte(c.text)}, {"b.yaml", []byte("kind: Namespace\n")}})
		switch {
		case c.want == "" && (err != nil || strings.Count(r.YAML, "aibrix:") != 256):
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || err.Error() != "a.yaml, b.yaml: one gateway does not take what is there: "+c.want+"; import them in parts, each for a gateway of its own"):
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// No file makes the importer panic or hang, and whatever it writes the gateway takes.
func FuzzImport(f *testing.F) {
	paths, _ := filepath.Glob("testdata/*.txtar")
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range txtar.Parse(data).Files {
			f.Add(file.Data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		hang := time.AfterFunc(2*time.Minute, func() { panic("hangs") })
		defer hang.Stop()
		r, err := Import([]File{{"f", data}})
		if err != nil {
			return
		}
		if _, err = config.Parse("pointsman.yaml", []byte(r.YAML)); err != nil {
			t.Errorf("%v\n%s", err, r.YAML)
		}
	})
}
