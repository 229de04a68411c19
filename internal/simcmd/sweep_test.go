package simcmd

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pointsman.dev/pointsman/internal/sim"
)

// slowly is a run of a minute of which each virtual second takes so long.
func slowly(second time.Duration) sim.Config {
	c := sim.Config{Endpoints: sim.Fleet(1, sim.DefaultEngine()), Length: time.Minute}
	c.Workload = func(s *sim.Sim) {
		var next func()
		next = func() {
			time.Sleep(second) // in a bubble
			s.After(time.Second, next)
		}
		s.At(500*time.Millisecond, next)
	}
	return c
}

// A long run says how far it is in virtual time; on a terminal the line is gone when it is done. A short one says nothing.
func TestProgress(t *testing.T) {
	const second = 199 * time.Millisecond // no tick is due when a second ends
	for _, c := range []struct {
		name     string
		second   time.Duration
		runs     int
		terminal bool
		want     []string
	}{
		{"short", time.Millisecond, 2, false, nil},
		{"short on a terminal", time.Millisecond, 2, true, nil},
		{"one long run", second, 1, false, []string{"42 % of 1m0s, 5.0 times as fast as real, about 7s left\n", "83 % of 1m0s, 5.0 times as fast as real, about 2s left\n"}},
		{"one long run on a terminal", second, 1, true, []string{"\r10 % of 1m0s, 5.0 times as fast as real, about 11s left\x1b[K", "\r50 % of 1m0s", "left\x1b[K\r\x1b[K"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				cfgs := make([]sim.Config, c.runs)
				for i := range cfgs {
					cfgs[i] = slowly(c.second)
				}
				p := newProgress(&out, cfgs)
				if p.terminal {
					t.Error("a buffer is no terminal")
				}
				p.terminal = c.terminal
				if _, err := p.sweep(t.Context(), cfgs); err != nil {
					t.Fatal(err)
				}
				if c.want == nil && out.Len() > 0 {
					t.Errorf("%q", out.String())
				}
				rest := out.String()
				for _, w := range c.want {
					var ok bool
					if _, rest, ok = strings.Cut(rest, w); !ok {
						t.Errorf("%q is not in, or not behind what was before it: %q", w, out.String())
					}
				}
			})
		})
	}
}
