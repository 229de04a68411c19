package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A flag and the workload's file say the same with the same keys.
func TestSimEndpoints(t *testing.T) {
	off := false
	want := SimEndpoint{First: 2, Last: 3, Speed: 0.5, KVTokens: 64000, BlockSize: 32, MaxNumSeqs: 64, MaxBatchedTokens: 8192, Ranks: 2, PrefixCaching: &off,
		Join: time.Second, Warm: true, Leave: 5 * time.Minute, Down: []SimSpan{{10 * time.Second, 20 * time.Second}, {30 * time.Second, 0}},
		Hang: []SimSpan{{40 * time.Second, 50 * time.Second}}, Foreign: 1.5, ForeignPrompt: 2000, ForeignOutput: 300}
	flag := "2-3:speed=0.5,kv_tokens=64000,block_size=32,max_num_seqs=64,max_num_batched_tokens=8192,ranks=2,prefix_caching=false,join=1s,warm=true,leave=5m," +
		"down=10s-20s,down=30s,hang=40s-50s,foreign=1.5,foreign_prompt=2000,foreign_output=300"
	got, err := ParseSimEndpoint("--endpoint", flag)
	if err != nil {
		t.Fatal(err)
	}
	if got.Where != "--endpoint "+flag || !strings.HasPrefix(got.Text, "speed 0.5, kv_tokens 64000, ") {
		t.Errorf("%q, %q", got.Where, got.Text)
	}
	got.Where, got.Text = "", ""
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("flag (-want +got):\n%s", diff)
	}
	w, err := ParseWorkload("w.yaml", []byte(chatWorkload+`endpoints:
  2-3: {speed: 0.5, kv_tokens: 64000, block_size: 32, max_num_seqs: 64, max_num_batched_tokens: 8192, ranks: 2, prefix_caching: false, join: 1s, warm: true,
    leave: 5m, down: [10s-20s, 30s], hang: 40s-50s, foreign: 1.5, foreign_prompt: 2000, foreign_output: 300}
  0:
    speed: 2
`))
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Endpoints) != 2 || w.Endpoints[0].Where != "w.yaml:13" || w.Endpoints[1].Text != "speed 2" {
		t.Fatalf("%+v", w.Endpoints)
	}
	got = w.Endpoints[0]
	got.Where, got.Text = "", ""
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
}

func TestBadSimEndpoints(t *testing.T) {
	for _, c := range []struct{ flag, want string }{
		{"4", "--endpoints 4 is how many there are"},
		{"", "write NUMBER:KEY=VALUE"},
		{"x:speed=1", "want the number of an endpoint"},
		{"3-1:speed=1", "want the number of an endpoint"},
		{"9999:speed=1", "0 to 1023"},
		{"0:", "known here: speed"},
		{"0:sped=1", "did you mean speed?"},
		{"0:kv-tokens=1", "did you mean kv_tokens?"},
		{"0:speed", "write speed=..."},
		{"0:speed=fast", "want a number from 0.01 to 100"},
		{"0:speed=0", "want a number from 0.01 to 100"},
		{"0:speed=NaN", "want a number from 0.01 to 100"},
		{"0:speed=1,speed=2", "set a second time"},
		{"0:ranks=-1", "must be at least 1"},
		{"0:ranks=99999999999999999999", "want a whole number from 1 to 256"},
		{"0:block_size=16k", "write the number out"},
		{"0:prefix_caching=off", "write false"},
		{"0:join=60", "write 60s"},
		{"0:warm=true", "say when it joins"},
		{"0:join=60s,leave=30s", "put leave after join"},
		{"0:join=60s,down=30s", "put join first"},
		{"0:down=90s-30s", "ends before it begins"},
		{"0:down=30s-", "write 30s-90s"},
		{"0:hang=-5s", "write 30s-90s"},
		{"0:hang=30", "write 30s-90s"},
		{"0:foreign_prompt=3", "say how many come per second"},
	} {
		if e, err := ParseSimEndpoint("--endpoint", c.flag); err == nil || !strings.HasPrefix(err.Error(), "--endpoint: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %+v, %v, want %s", c.flag, e, err, c.want)
		}
	}
	for _, c := range []struct{ yaml, want string }{
		{"endpoints: 3", "w.yaml:12:12: endpoints: 3: is a whole number, want a mapping"},
		{"endpoints:\n  one: {speed: 1}", "w.yaml:13:3: endpoints.one: want the number"},
		{"endpoints:\n  0: {sped: 1}", "w.yaml:13:7: endpoints.0.sped: unknown key; did you mean speed?"},
		{"endpoints:\n  0: {speed: 1}\n  0: {speed: 2}", "w.yaml:14:3: endpoints.0: set a second time, first in line 13"},
		{"endpoints:\n  0: {down: [10s-20s, 3]}", "w.yaml:13:23: endpoints.0.down[1]: 3: want from when to when"},
		{"endpoints:\n  0: {warm: true}", "w.yaml:13:3: endpoints.0: is warm from the start"},
		{"endpoints:\n  0: 3", "want a mapping with the keys speed"},
		{"endpoints:\n  0: {join: 10s, join: 20s}", "set a second time"},
	} {
		if _, err := ParseWorkload("w.yaml", []byte(chatWorkload+c.yaml)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\n got %v\nwant %s", c.yaml, err, c.want)
		}
	}
}

func FuzzParseSimEndpoint(f *testing.F) {
	f.Add("0:speed=0.5,kv_tokens=64000")
	f.Add("2-3:join=1s,warm=true,leave=5m,down=10s-20s,down=30s,hang=40s-50s,foreign=1.5")
	f.Add("0:,,=")
	f.Fuzz(func(t *testing.T, text string) {
		e, err := ParseSimEndpoint("--endpoint", text)
		if err != nil {
			return
		}
		if e.First < 0 || e.Last < e.First || e.Last >= maxSimEndpoints || e.Speed < 0 || e.Warm && e.Join <= 0 || e.Leave != 0 && e.Leave <= e.Join {
			t.Fatalf("%+v", e)
		}
		for _, s := range append(e.Down, e.Hang...) {
			if s.From < e.Join || s.To != 0 && s.To <= s.From {
				t.Fatalf("%+v", e)
			}
		}
	})
}
