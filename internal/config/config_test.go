package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const onePool = "pools:\n  - name: chat\n    endpoints: [http://10.0.0.3:8000]\n"

// Endpoint flags alone are a whole configuration.
func TestFlagsAlone(t *testing.T) {
	c, err := FromFlags(Flags{Endpoints: []string{"http://10.0.0.3:8000", "http://vllm-1:8000/"}, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Listen, want.Admin = "127.0.0.1:0", "127.0.0.1:0"
	p := DefaultPool("default")
	p.Endpoints = []string{"http://10.0.0.3:8000", "http://vllm-1:8000"}
	want.Pools = []Pool{p}
	if diff := cmp.Diff(want, c, cmp.AllowUnexported(Secret{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFlagsOverFile(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "pointsman.yaml"), "listen: 0.0.0.0:1\nadmin: 127.0.0.1:2\n"+onePool)
	c, err := FromFlags(Flags{Config: path, Listen: "127.0.0.1:3"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "127.0.0.1:3" || c.Admin != "127.0.0.1:2" || c.Path != path {
		t.Errorf("listen %s admin %s path %s", c.Listen, c.Admin, c.Path)
	}
	noPools := write(t, filepath.Join(t.TempDir(), "pointsman.yaml"), "limit: 10m\n")
	c, err = FromFlags(Flags{Config: noPools, Endpoints: []string{"http://10.0.0.3:8000"}})
	if err != nil {
		t.Fatal(err)
	}
	if c.Limit != 10*time.Minute || len(c.Pools) != 1 || c.Pools[0].Name != "default" {
		t.Errorf("limit %v pools %v", c.Limit, c.Pools)
	}
}

func TestFlagErrors(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "pointsman.yaml"), onePool)
	one := []string{"http://10.0.0.3:8000"}
	for _, c := range []struct {
		flags Flags
		want  string
	}{
		{Flags{}, "--endpoint: a gateway needs an endpoint; give at least one, like --endpoint http://127.0.0.1:8000, or --config FILE"},
		{Flags{Endpoints: []string{"10.0.0.3:8000"}}, `--endpoint: "10.0.0.3:8000": a URL starts with http:// or https://; write http://10.0.0.3:8000`},
		{Flags{Endpoints: []string{"http://key@10.0.0.3:8000"}},
			`--endpoint: "http://[hidden]@10.0.0.3:8000": a user or password in the URL would show in metrics and logs; write http://10.0.0.3:8000 and put the key into api_key_file`},
		{Flags{Endpoints: []string{"http://[::1]:8000", "http://[0:0::1]:8000"}}, `--endpoint: "http://[0:0::1]:8000": given twice; remove one of them`},
		{Flags{Endpoints: append(one, "http://10.0.0.3:8000/")}, `--endpoint: "http://10.0.0.3:8000/": given twice; remove one of them`},
		{Flags{Endpoints: one, Listen: "8080"}, `--listen: "8080": want an address, host:port; write 0.0.0.0:8080`},
		{Flags{Endpoints: one, Admin: "9090"}, `--admin: "9090": want an address, host:port; write 127.0.0.1:9090`},
		{Flags{Endpoints: one, Listen: "127.0.0.1:9090"},
			`--listen: "127.0.0.1:9090": admin listens on 127.0.0.1:9090 unless told otherwise; take another port, or set admin`},
		{Flags{Config: path, Endpoints: one}, "--endpoint: the file " + path + " has pools already; add the endpoint to a pool in the file, or leave --config away"},
		{Flags{Config: filepath.Join(dir, "none.yaml")}, filepath.Join(dir, "none.yaml") + ": there is no such file"},
		{Flags{Config: dir}, dir + ": is a folder; name the file in it"},
	} {
		t.Run(c.want, func(t *testing.T) {
			_, err := FromFlags(c.flags)
			if err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
			var e *Error
			if !errors.As(err, &e) {
				t.Errorf("errors.As finds no *Error in a %T", err)
			}
		})
	}
}

// A relative path starts at the configuration's folder, whatever the working directory is.
func TestRelativePaths(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "key"), "  the-key\n")
	path := write(t, filepath.Join(dir, "pointsman.yaml"), "pools:\n  - {name: a, file: sub/endpoints.yaml, api_key_file: key}\n  - {name: b, file: /abs/endpoints.yaml}\n")
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{c.Pools[0].File, c.Pools[0].APIKeyFile, c.Pools[1].File, c.Pools[0].APIKey.Reveal()}
	want := []string{filepath.Join(dir, "sub/endpoints.yaml"), filepath.Join(dir, "key"), "/abs/endpoints.yaml", "the-key"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Check reads endpoints files too; Load does not, so that a file may come later.
func TestCheckReadsEndpointsFiles(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "pointsman.yaml"), "pools:\n  - {name: a, file: good}\n  - {name: b, file: bad}\n  - {name: c, file: none}\n")
	write(t, filepath.Join(dir, "good"), "http://10.0.0.3:8000\n")
	write(t, filepath.Join(dir, "bad"), "http://10.0.0.3:8000\n10.0.0.4\n")
	if _, err := Load(path); err != nil {
		t.Errorf("Load: %v", err)
	}
	_, err := Check(path)
	want := path + `:4:21: pools[2].file: "none": there is no such file; serve waits for it, and has no endpoints until then; a relative path starts at the configuration's folder` + "\n" +
		filepath.Join(dir, "bad") + `:2:1: "10.0.0.4": a URL starts with http:// or https://; write http://10.0.0.4:8000`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// Nothing that prints a configuration prints a key.
func TestSecretIsHidden(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "key"), "hunter2hunter2")
	path := write(t, filepath.Join(dir, "pointsman.yaml"), "pools:\n  - {name: a, endpoints: [http://10.0.0.3:8000], api_key_file: key}\n")
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Pools[0].APIKey.Reveal(); got != "hunter2hunter2" {
		t.Fatalf("the key reads as %q", got)
	}
	var logged strings.Builder
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("x", "pool", c.Pools[0], "key", c.Pools[0].APIKey)
	js, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(c.Pools), fmt.Sprintf("%+v %#v %s %q", c.Pools, c.Pools, c.Pools[0].APIKey, c.Pools[0].APIKey), string(js), logged.String(), c.YAML()} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("the key is in %s", text)
		}
	}
	if !(Secret{}).IsZero() || (Secret{}).String() != "" {
		t.Error("the zero Secret is not zero")
	}
}

// Every endpoints file reads, or fails, as the golden beside it says.
func TestEndpointsFiles(t *testing.T) {
	paths, err := filepath.Glob("testdata/endpoints/*.in")
	if err != nil || len(paths) < 15 {
		t.Fatalf("%d files (%v)", len(paths), err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".in")
		t.Run(name, func(t *testing.T) {
			t.Chdir("testdata/endpoints")
			urls, err := ReadEndpoints(name + ".in")
			got := strings.Join(urls, "\n")
			if err != nil {
				got = "error\n" + err.Error()
			}
			if strings.Contains(got, "hunter2") {
				t.Errorf("a password is shown: %s", got)
			}
			golden(t, name+".golden", got+"\n")
		})
	}
}

func TestTooManyEndpoints(t *testing.T) {
	var b strings.Builder
	for i := range maxEndpoints + 1 {
		fmt.Fprintf(&b, "http://10.0.%d.%d:8000\n", i/256, i%256)
	}
	if _, err := ParseEndpoints("e", []byte(b.String())); err == nil || !strings.Contains(err.Error(), "at most 4096") {
		t.Errorf("got %v", err)
	}
	if _, err := ParseEndpoints("e", make([]byte, maxFile+1)); err == nil {
		t.Error("a file of a megabyte and more is accepted")
	}
}

func TestSuggestions(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"prefixx", "prefix"}, {"pre fix", "prefix"}, {"perfix", "prefix"}, {"least-request", "least_request"}, {"leastRequest", "least_request"},
		{"LEAST_REQUEST", "least_request"}, {"atuo", "auto"}, {"x", ""}, {"", ""}, {"weighted", ""},
	} {
		if got := Closest(c.text, policies()); got != c.want {
			t.Errorf("Closest(%q) = %q, want %q", c.text, got, c.want)
		}
	}
}

func TestSizesAndDurationsAsWritten(t *testing.T) {
	for text, want := range map[string]int64{"64MiB": 64 << 20, "1.5GiB": 3 << 29, "2048": 2048, "2048B": 2048, "1 KiB": 1024, "1_024": 1024} {
		if got, ok := parseSize(text); !ok || got != want {
			t.Errorf("parseSize(%q) = %d %v, want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "KiB", "1e3", "-1", "1KB", "0x10", "1..2", "99999999999GiB", "NaN"} {
		if got, ok := parseSize(text); ok {
			t.Errorf("parseSize(%q) = %d, want a refusal", text, got)
		}
	}
	c := Default()
	c.Limit, c.MaxBody = 90*time.Second, 1536<<10
	if c.LimitText() != "1m30s" || c.MaxBodyText() != "1536KiB" {
		t.Errorf("%s %s", c.LimitText(), c.MaxBodyText())
	}
}

// Colons inside flow lists inside flow mappings are text, as YAML says and as people write them.
func TestFlowColons(t *testing.T) {
	for _, text := range []string{
		"pools: [{name: a, endpoints: [http://h:8000, http://i:8000]}]",
		"pools: [{name: a, endpoints: [ http://h:8000 ,http://i:8000 ]}]",
		"pools:\n  - {name: a, endpoints: [http://h:8000,\n      http://i:8000]}",
		`{"pools":[{"name":"a","endpoints":["http://h:8000","http://i:8000"]}]}`,
		`pools: [{name: a, endpoints: [http://h:8000, "http://i:8000"], full: {waiting: 1}}]`,
	} {
		c, err := Parse("x.yaml", []byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if want := []string{"http://h:8000", "http://i:8000"}; !slices.Equal(c.Pools[0].Endpoints, want) {
			t.Errorf("%s: got %v", text, c.Pools[0].Endpoints)
		}
	}
	c, err := Parse("x.yaml", []byte("pools: [{name: a, endpoints: [http://h:8000]}]\nmodels: [{name: x:latest, serves: org/y:2, pools: [a]}]"))
	if err != nil || c.Models[0].Name != "x:latest" || c.Models[0].Serves != "org/y:2" {
		t.Errorf("%v %v", c, err)
	}
}

// A key file that everybody may read is warned of, one that only its owner may read is not.
func TestOpenKeyFileWarns(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "pointsman.yaml"), "pools:\n  - {name: a, endpoints: [http://10.0.0.3:8000], api_key_file: key}\n")
	for mode, want := range map[os.FileMode]int{0o600: 0, 0o640: 0, 0o644: 1} {
		if err := os.Chmod(write(t, filepath.Join(dir, "key"), "the-key"), mode); err != nil {
			t.Fatal(err)
		}
		c, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Warnings) != want {
			t.Errorf("mode %o: warnings %v, want %d", mode, c.Warnings, want)
		}
	}
}

func TestWordsOfValues(t *testing.T) {
	got := fmt.Sprint(PolicyAuto, PolicyPrefix, PolicyLeastRequest, GatesDefault, GatesStrict, GatesOff, WhenFullSeconds, WhenFullRequests, LogText, LogJSON, Policy(9))
	if want := "auto prefix least_request default strict off seconds requests text json 9"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for i, w := range logLevels() {
		if levelWord(levelOf(i)) != w || !strings.EqualFold(levelOf(i).String(), w) {
			t.Errorf("level %s is %s", w, levelOf(i))
		}
	}
}

// A file of nothing but brackets is refused at once.
func TestBracketsInBrackets(t *testing.T) {
	start := time.Now()
	_, err := Parse("x.yaml", []byte("pools: "+strings.Repeat("[", 100_000)+strings.Repeat("]", 100_000)))
	if err == nil || !strings.Contains(err.Error(), "not YAML") || time.Since(start) > time.Minute {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}
