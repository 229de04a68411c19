package app

import (
	"bytes"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/pool"
)

func TestStateCounts(t *testing.T) {
	var list []pool.EndpointStatus
	for _, s := range []string{"asleep", "gone", "ejected", "gone"} {
		list = append(list, pool.EndpointStatus{State: s})
	}
	if got, want := stateCounts(list), "2 gone, 1 asleep, 1 ejected"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	list = append(list, pool.EndpointStatus{State: "warming", Heard: true, NoModelServer: true}, pool.EndpointStatus{State: "gone", Cause: "no such host"})
	if got, want := stateCounts(list), "2 gone, 1 asleep, 1 ejected, 1 never reached, 1 no model server"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestReadinessTellsEveryPool: one pool that is ready is enough; if none is, each says why.
func TestReadinessTellsEveryPool(t *testing.T) {
	pools := []pool.Status{
		{Name: "chat", Endpoints: []pool.EndpointStatus{{State: "gone"}}},
		{Name: "none"},
		{Name: "embed", Endpoints: []pool.EndpointStatus{{State: "asleep"}, {State: "asleep"}}},
	}
	const want = "no endpoint of pool chat is known usable: 1 gone; no endpoint of pool embed is known usable: 2 asleep"
	if ok, why := readiness(pools); ok || why != want {
		t.Errorf("ready %v, %q, want %q", ok, why, want)
	}
	if ok, why := readiness(pools[1:2]); ok || why != "no pool has an endpoint" {
		t.Errorf("ready %v, %q", ok, why)
	}
	pools[2].Ready = true
	if ok, why := readiness(pools); !ok || why != "" {
		t.Errorf("ready %v, %q", ok, why)
	}
}

// TestReloadSaysWhatNeedsARestart: a key that a reload cannot change is not passed over in silence.
func TestReloadSaysWhatNeedsARestart(t *testing.T) {
	var log bytes.Buffer
	load := func(change func(*config.Config)) *config.Config {
		cfg := config.Default()
		cfg.Listen, cfg.Admin = "127.0.0.1:0", "127.0.0.1:0"
		change(cfg)
		return cfg
	}
	g, err := Start(t.Context(), load(func(*config.Config) {}), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	g.Reload(load(func(cfg *config.Config) { cfg.Log.Level = slog.LevelWarn }))
	quiet := log.String()
	g.Reload(load(func(cfg *config.Config) {
		cfg.Admin, cfg.Log.Format, cfg.Peers = "127.0.0.1:1", config.LogJSON, &config.Peers{}
	}))
	g.Close()
	if strings.Contains(quiet, "restart") {
		t.Errorf("a change of the level asks for a restart: %s", quiet)
	}
	for _, want := range []string{"listen, admin and the names of TLS files change with a restart only", `"log.format changes with a restart only" format=json`, "the keys of peers change with a restart only"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, log.String())
		}
	}
}

// TestReloadOfTheAccessRecord: what access records say changes with a reload that changes nothing else.
func TestReloadOfTheAccessRecord(t *testing.T) {
	var out lockedBuffer
	load := func(hashes bool) *config.Config {
		cfg := config.Default()
		cfg.Listen, cfg.Admin, cfg.Log.PrefixHashes = "127.0.0.1:0", "127.0.0.1:0", hashes
		cfg.Pools = []config.Pool{{Name: "p", Endpoints: []string{"http://127.0.0.1:1"}}}
		return cfg
	}
	g, err := Start(t.Context(), load(false), slog.New(slog.NewTextHandler(&out, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ask := func() {
		res, err := http.Post(g.API()+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"hello"}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
	ask()
	before := strings.Contains(out.String(), "prefix=")
	g.Reload(load(true))
	ask()
	g.Close() // after the last record
	if after := strings.Contains(out.String(), "prefix="); before || !after {
		t.Errorf("prefixes are said before the reload: %v, after it: %v\n%s", before, after, out.String())
	}
}

// TestWatchMissesNothing: a file that changes while the gateway starts is loaded again.
func TestWatchMissesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pointsman.yaml")
	if err := os.WriteFile(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case <-watch(t.Context(), path, []byte("old"), time.Millisecond):
	case <-time.After(time.Minute):
		t.Error("nobody noticed")
	}
}
