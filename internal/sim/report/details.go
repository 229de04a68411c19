package report

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// overTime compares the policies over the time of their first run.
func (r *Report) overTime(b *strings.Builder) {
	own := &r.Lines[r.own()]
	if own.Series == nil || len(own.Series.Arrivals) < 2 {
		return
	}
	end := own.Series.Step * float64(len(own.Series.Arrivals))
	x := axis{lo: 0, hi: end}
	if end >= 120 {
		x.unit = 60
	}
	top := niceTop(highest(own.Series.Arrivals))
	load := newChart("Arrivals", 200, x, axis{lo: 0, hi: top}, minutes, number)
	load.line(curve{"requests per second", "c0", own.Series.times(), own.Series.Arrivals})
	fmt.Fprintf(b, `<figure><figcaption>Arrivals <small>requests per second</small></figcaption>%s</figure>`, load)

	for _, c := range []struct {
		title, more string
		of          func(*Series) []float64
		limit       float64
		top         float64
		name        func(float64) string
	}{
		{"Goodput over time", "of those that arrived then", func(s *Series) []float64 { return s.Goodput }, 0, 100, func(v float64) string { return number(v) + " %" }},
		{"First token over time", "95 % are faster", func(s *Series) []float64 { return s.TTFT }, r.SLO.TTFT, 0, tickTime},
		{"Under way", "requests at the gateway", func(s *Series) []float64 { return s.Open }, 0, 0, number},
		{"Waiting", "requests in the queues of the model servers, at most", (*Series).queued, 0, 0, number},
	} {
		hi := c.top
		var curves []curve
		for k, i := range r.shown(mostLive) {
			s := r.Lines[i].Series
			if s == nil {
				continue
			}
			v := curve{r.Lines[i].Name, fmt.Sprintf("c%d", k), s.times(), gaps(c.of(s))}
			curves = append(curves, v)
			if c.top == 0 {
				hi = max(hi, niceTop(highest(v.y)))
			}
		}
		ch := newChart(c.title, 200, x, axis{lo: 0, hi: hi}, minutes, c.name)
		ch.level(c.limit, "limit")
		for k := len(curves) - 1; k >= 0; k-- {
			ch.line(curves[k])
		}
		fmt.Fprintf(b, `<figure><figcaption>%s <small>%s</small></figcaption>%s%s</figure>`, c.title, c.more, ch, legend(curves))
	}
}

// queued is how many requests wait in the queues of all endpoints.
func (s *Series) queued() []float64 {
	out := make([]float64, len(s.Arrivals))
	for i := range s.Endpoints {
		for k, v := range s.Endpoints[i].Waiting {
			out[k] += v
		}
	}
	return out
}

// times are the middles of the pieces.
func (s *Series) times() []float64 {
	out := make([]float64, len(s.Arrivals))
	for i := range out {
		out[i] = (float64(i) + 0.5) * s.Step
	}
	return out
}

// gaps turns what is not known, below 0, into gaps of a line.
func gaps(v []float64) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		if out[i] = x; x < 0 {
			out[i] = math.NaN()
		}
	}
	return out
}

func highest(v []float64) float64 {
	hi := 0.0
	for _, x := range v {
		if x > hi { // not a NaN
			hi = x
		}
	}
	return hi
}

func minutes(seconds float64) string {
	if seconds == 0 {
		return "0"
	}
	if seconds < 60 {
		return number(seconds) + "s"
	}
	return number(seconds/60) + "m"
}

// lineDetails shows how the endpoints shared the work under one policy.
func (r *Report) lineDetails(b *strings.Builder, p *Policy, open bool) {
	attr, under := "", "under "
	if r.Base != "" {
		under = "" // "as given", "if gates=off"
	}
	if open {
		attr = ` open=""`
	}
	fmt.Fprintf(b, `<details%s><summary>Endpoints %s%s <small>the busiest computes %.2f times as long as the mean</small></summary>`,
		attr, under, html.EscapeString(p.Name), p.Imbalance)
	if s := p.Series; s != nil && len(s.Endpoints) > 0 {
		running, waiting, out := 0.0, 0.0, 0.0
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			running, waiting, out = max(running, highest(e.Running)), max(waiting, highest(e.Waiting)), max(out, highest(e.Out))
		}
		bars := max(waiting, math.Ceil(running/2)) // one or two that wait for the next step are no queue, and should not look like one
		fmt.Fprintf(b, `<p class="legend"><span><i class="kv"></i>KV memory in use, top is 100 %%</span><span><i class="run"></i>running, top is %s</span>`, number(running))
		if waiting > 0 {
			fmt.Fprintf(b, `<span><i class="wait"></i>waiting, top is %s</span>`, number(bars))
		}
		if out >= 0.5 {
			b.WriteString(`<span><i class="out"></i>not there, or not working</span>`)
		}
		fmt.Fprintf(b, `<span>from left to right: %s</span></p><div class="strips">`, minutes(s.Step*float64(len(s.Arrivals))))
		for i := range s.Endpoints {
			b.WriteString(strip(fmt.Sprint(i), &s.Endpoints[i], len(s.Arrivals), running, bars))
		}
		b.WriteString("</div>")
	}
	writeTable(b, p.endpointRows())
	p.reasons(b)
	b.WriteString("</details>\n")
}

func (p *Policy) reasons(b *strings.Builder) {
	if len(p.Reasons) == 0 {
		return
	}
	total := 0
	for _, c := range p.Reasons {
		total += c.N
	}
	b.WriteString(`<p class="reasons">Picks by reason:`)
	for _, c := range p.Reasons {
		fmt.Fprintf(b, ` <span>%s <b>%d</b> <small>%.1f %%</small></span>`, html.EscapeString(c.Name), c.N, 100*float64(c.N)/float64(max(1, total)))
	}
	b.WriteString("</p>")
}
