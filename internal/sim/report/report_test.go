package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/sim"
)

// some is a report of a short run under two policies, two seeds each.
func some(t *testing.T) *Report {
	t.Helper()
	r := &Report{Workload: `chat <b>&"`, Facts: []Fact{{"fleet", "2 <endpoints>"}}, Seeds: 2, First: 1, SLO: SLO{TTFT: 2, LongTTFT: 30, TPOT: 0.1}}
	lr, _ := sim.PolicyByName("least_request")
	for _, p := range []sim.Policy{lr, sim.Ours()} {
		var results []*sim.Result
		var series *Series
		for seed := range uint64(2) {
			rec := NewRecorder(30*time.Second, 100*time.Millisecond)
			c := sim.Config{Endpoints: sim.Fleet(2, sim.DefaultEngine()), Policy: p, Workload: sim.W7, Length: 30 * time.Second, Seed: seed + 1}
			c.Sink, c.Sample, c.SampleEvery = rec.Record, rec.Sample, rec.Every()
			res, err := sim.Run(c)
			if err != nil {
				t.Fatal(err)
			}
			results = append(results, res)
			if seed == 0 {
				series = rec.Series()
			}
		}
		r.Add(p.Name, p.Source, results, series)
	}
	r.Finish()
	return r
}

func written(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// What is added up is what the runs said.
func TestAdd(t *testing.T) {
	r := some(t)
	if len(r.Lines) != 2 || r.Lines[0].Mean < r.Lines[1].Mean {
		t.Fatalf("not the best first: %+v", r.Lines)
	}
	for _, p := range r.Lines {
		n := 0
		for _, c := range p.Reasons {
			n += c.N
		}
		picks := 0
		for _, e := range p.Endpoints {
			picks += e.Picks
			if e.Busy <= 0 || e.Busy > 1.01 {
				t.Errorf("%s: an endpoint is busy %.2f of the time", p.Name, e.Busy)
			}
		}
		if p.Name != "pointsman" && n == 0 {
			n = picks // it gives no reasons
		}
		if o := p.Overall; n != o.Requests || picks != n || len(p.Goodput) != 2 || o.TTFT.P50 <= 0 || o.TTFT.P50 > o.TTFT.P95 || o.TTFT.P95 > o.TTFT.Max {
			t.Errorf("%s: %d reasons, %d picks, %+v", p.Name, n, picks, o)
		}
		if len(p.Classes) != 2 || p.Classes[0].Requests+p.Classes[1].Requests != p.Overall.Requests || p.Imbalance < 1 {
			t.Errorf("%s: %+v, imbalance %.2f", p.Name, p.Classes, p.Imbalance)
		}
		s := p.Series
		arrived := 0.0
		for _, v := range s.Arrivals {
			arrived += v * s.Step
		}
		if len(s.Arrivals) > points || len(s.Endpoints) != 2 || arrived < float64(p.Overall.Requests)/2*0.8 {
			t.Errorf("%s: %d pieces, %d endpoints, %.0f arrivals of %d", p.Name, len(s.Arrivals), len(s.Endpoints), arrived, p.Overall.Requests)
		}
	}
}

// The page is well formed, is one file, and takes no text for markup. The same runs give the same bytes.
func TestHTML(t *testing.T) {
	page := written(t, some(t).WriteHTML)
	if again := written(t, some(t).WriteHTML); again != page {
		t.Error("two pages of the same runs differ")
	}
	for _, bad := range []string{"<script", "http://", "https://", "url(", "<b>&", "2 <endpoints>", "NaN", "Inf", "%!"} {
		if strings.Contains(page, bad) {
			t.Errorf("%q is in the page", bad)
		}
	}
	for _, want := range []string{"viewport", "prefers-color-scheme", "chat &lt;b&gt;&amp;", "Time to first token", "Endpoints under pointsman", `<section class="answer"><p><b>`, "long prompts", "requests; "} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in the page", want)
		}
	}
	_, svgs, _ := strings.Cut(page, "<main>")
	svgs, _, _ = strings.Cut(svgs, "</main>")
	d := xml.NewDecoder(strings.NewReader("<main>" + svgs + "</main>"))
	d.Entity = xml.HTMLEntity
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the page is not well formed: %v", err)
		}
	}
}

func TestTextAndJSON(t *testing.T) {
	r := some(t)
	out := written(t, r.WriteText)
	for _, want := range []string{"fleet      2 <endpoints>", "policy ", "goodput %", "picks by reason", "endpoint 1 "} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	var back Report
	if err := json.Unmarshal([]byte(written(t, r.WriteJSON)), &back); err != nil {
		t.Fatal(err)
	}
	if back.Lines[0].Overall != r.Lines[0].Overall || back.Lines[0].Series.Step != r.Lines[0].Series.Step {
		t.Errorf("JSON says %+v", back.Lines[0].Overall)
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		a    axis
		want int
	}{
		{axis{lo: 0, hi: 100}, 6}, {axis{lo: 0, hi: 786, unit: 60}, 3}, {axis{lo: 0.01, hi: 10, log: true}, 4}, {axis{lo: 0.02, hi: 0.5, log: true}, 3}, {axis{}, 1},
	} {
		if got := c.a.ticks(); len(got) != c.want {
			t.Errorf("%+v: %v, want %d", c.a, got, c.want)
		}
	}
	for _, v := range []float64{0, 0.3, 1, 7, 99, 1234} {
		if top := niceTop(v); top < v || top > 3*max(v, 1) {
			t.Errorf("top of %g is %g", v, top)
		}
	}
}

// A line without a series, or with nothing in it, is still a page.
func TestEmpty(t *testing.T) {
	r := &Report{Workload: "w"}
	r.Add("p", "", []*sim.Result{{}}, nil)
	if page := written(t, r.WriteHTML); strings.Contains(page, "NaN") {
		t.Error("NaN in the page")
	}
	written(t, r.WriteText)
}

// A run is cut into pieces that have requests enough to say something; what nobody knows is not 0; an endpoint that is not there, dead or hung
// is marked.
func TestSeries(t *testing.T) {
	run := func(every time.Duration) *Series {
		t.Helper()
		c := sim.Config{Endpoints: sim.Fleet(4, sim.DefaultEngine()), Length: 160 * time.Second, Seed: 1}
		c.Endpoints[1].Join = 80 * time.Second
		c.Endpoints[2].Down = []sim.Outage{{From: 40 * time.Second, To: 80 * time.Second}}
		c.Endpoints[3].Hang = []sim.Outage{{From: 80 * time.Second, To: 120 * time.Second}}
		c.Workload = func(s *sim.Sim) {
			for at := time.Duration(0); at < 100*time.Second; at += every { // nothing in the end
				s.At(at, func() { s.Send(&sim.Request{Parts: []sim.Part{{ID: s.NewID(), Tokens: 100}}, Output: 10}) })
			}
		}
		rec := NewRecorder(c.Length, 0)
		c.Sink, c.Sample, c.SampleEvery = rec.Record, rec.Sample, rec.Every()
		if _, err := sim.Run(c); err != nil {
			t.Fatal(err)
		}
		return rec.Series()
	}
	for _, c := range []struct {
		every  time.Duration
		pieces int
	}{{50 * time.Millisecond, 160}, {400 * time.Millisecond, 40}, {10 * time.Second, 20}} {
		s := run(c.every)
		step, sent, last := 160/float64(c.pieces), 0.0, c.pieces-1
		for _, v := range s.Arrivals {
			sent += v * s.Step
		}
		if len(s.Arrivals) != c.pieces || s.Step != step || math.Abs(sent-float64(100*time.Second/c.every)) > 0.5 {
			t.Errorf("every %v: %d pieces of %g s with %g requests", c.every, len(s.Arrivals), s.Step, sent)
			continue
		}
		if s.TTFT[0] <= 0 || s.Goodput[0] != 100 || s.TTFT[last] != -1 || s.Goodput[last] != -1 || s.Arrivals[last] != 0 {
			t.Errorf("every %v: first and last first token %v, %v, goodput %v, %v", c.every, s.TTFT[0], s.TTFT[last], s.Goodput[0], s.Goodput[last])
		}
		for i, want := range []float64{0: 0, 1: 80, 2: 40, 3: 40} {
			out := 0.0
			for _, v := range s.Endpoints[i].Out {
				out += v * s.Step
			}
			if math.Abs(out-want) > step {
				t.Errorf("every %v: endpoint %d is out for %g s, want %g", c.every, i, out, want)
			}
		}
	}
}
