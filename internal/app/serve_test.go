package app

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

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
	g.Reload(load(func(cfg *config.Config) { cfg.Admin, cfg.Log.Format = "127.0.0.1:1", config.LogJSON }))
	g.Close()
	if strings.Contains(quiet, "restart") {
		t.Errorf("a change of the level asks for a restart: %s", quiet)
	}
	for _, want := range []string{"listen and admin change with a restart only", `"log.format changes with a restart only" format=json`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, log.String())
		}
	}
}
