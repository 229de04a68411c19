package report

import (
	_ "embed"
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"pointsman.dev/pointsman/internal/sim"
)

//go:embed page.css
var pageCSS string

// How many policies the charts show as curves; the tables show all.
const (
	most     = 7
	mostLive = 3 // over time, where curves are restless
)

// WriteHTML writes the report as one page that needs nothing else: no script, no font, no other file.
func (r *Report) WriteHTML(w io.Writer) error {
	var b strings.Builder
	esc := html.EscapeString
	fmt.Fprintf(&b, `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<meta name="color-scheme" content="light dark"><title>%s: simulated</title><style>%s</style></head><body><main>
`, esc(r.Workload), pageCSS)
	fmt.Fprintf(&b, "<header><h1>%s</h1><p>What this traffic would have met, in virtual time, against a model of vLLM.</p></header>\n", esc(r.Workload))
	b.WriteString(`<dl class="facts">`)
	for _, f := range r.Facts {
		if f.Value == r.Workload {
			continue // it is the title
		}
		fmt.Fprintf(&b, "<div><dt>%s</dt><dd>%s</dd></div>", esc(f.Name), esc(f.Value))
	}
	b.WriteString("</dl>\n")
	if len(r.Answer) > 0 {
		b.WriteString(`<section class="answer">`)
		for _, s := range r.Answer {
			verdict, figures, more := strings.Cut(s, ". ")
			if more {
				verdict += "."
			}
			fmt.Fprintf(&b, "<p><b>%s</b> %s</p>", esc(verdict), esc(figures))
		}
		b.WriteString("</section>\n")
	}
	r.tiles(&b)
	r.bars(&b)
	r.table(&b)
	b.WriteString(`<section class="pair">`)
	r.distributions(&b)
	r.overTime(&b)
	b.WriteString("</section>\n")
	for i := range r.Lines {
		r.lineDetails(&b, &r.Lines[i], i == r.own())
	}
	b.WriteString("</main></body></html>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// own is the index of the line that the page is about: what the rest is compared with, or the gateway's own policy; else the best.
func (r *Report) own() int {
	return max(0, slices.IndexFunc(r.Lines, func(p Policy) bool {
		if r.Base != "" {
			return p.Name == r.Base
		}
		return strings.HasSuffix(p.Name, sim.Ours().Name)
	}))
}

// tiles are the numbers that matter most, of the line that the page is about.
func (r *Report) tiles(b *strings.Builder) {
	p := &r.Lines[r.own()]
	o := &p.Overall
	fmt.Fprintf(b, `<section><h2>%s</h2><div class="tiles">`, html.EscapeString(p.Name))
	tile := func(name, value, more string) {
		fmt.Fprintf(b, `<div class="tile"><b>%s</b><span>%s</span><small>%s</small></div>`, html.EscapeString(value), html.EscapeString(name), html.EscapeString(more))
	}
	tile("goodput", p.goodput()+" %", fmt.Sprintf("of %d requests; %s", o.Requests, lost(o)))
	tile("first token, 95 %", text(o.TTFT.P95), "half within "+text(o.TTFT.P50))
	tile("per token, 95 %", text(o.TPOT.P95), "half within "+text(o.TPOT.P50))
	tile("cache hits", percent(p.EngineHits)+" %", percent(p.PredictedHits)+" % expected")
	tile("preemptions", fmt.Sprint(p.Preemptions), fmt.Sprintf("%d tokens computed again", p.Recomputed))
	tile("all endpoints full", text(p.AllFull), "so long, over all seeds")
	b.WriteString("</div></section>\n")
}

// lost says what became of the requests that were not answered.
func lost(c *Class) string {
	var parts []string
	for _, x := range []struct {
		n    int
		what string
	}{{c.Refused, "refused"}, {c.Failed, "failed"}, {c.Cancelled, "went away"}, {c.Unfinished, "unfinished"}} {
		if x.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", x.n, x.what))
		}
	}
	if parts == nil {
		return "all were answered"
	}
	return strings.Join(parts, ", ")
}

// bars compares goodput.
func (r *Report) bars(b *strings.Builder) {
	if len(r.Lines) < 2 {
		return
	}
	b.WriteString(`<section><h2>Goodput</h2><div class="bars">`)
	for i := range r.Lines {
		p := &r.Lines[i]
		class := "bar"
		if i == r.own() {
			class += " own"
		}
		fmt.Fprintf(b, `<div class="%s"><span>%s</span><div class="track"><i style="width:%.2f%%"></i>`, class, html.EscapeString(p.Name), p.Mean)
		if p.Half >= 0.05 {
			lo, hi := max(0, p.Mean-p.Half), min(100, p.Mean+p.Half)
			fmt.Fprintf(b, `<u style="left:%.2f%%;width:%.2f%%"></u>`, lo, hi-lo)
		}
		fmt.Fprintf(b, "</div><b>%s</b></div>", html.EscapeString(p.goodput()))
	}
	b.WriteString("</div></section>\n")
}

func (r *Report) table(b *strings.Builder) {
	b.WriteString(`<section><h2>In numbers</h2>`)
	writeTable(b, r.rows())
	b.WriteString("<h2>Why not all were good</h2>")
	writeTable(b, r.outcomeRows())
	if rows := r.classRows(); len(rows) > 1 {
		b.WriteString("<details><summary>By class of requests</summary>")
		writeTable(b, rows)
		b.WriteString("</details>")
	}
	b.WriteString("</section>\n")
}

func writeTable(b *strings.Builder, rows [][]string) {
	b.WriteString(`<div class="scroll"><table>`)
	for i, row := range rows {
		tag := "td"
		if i == 0 {
			tag = "th"
		}
		b.WriteString("<tr>")
		for _, c := range row {
			fmt.Fprintf(b, "<%s>%s</%s>", tag, html.EscapeString(c), tag)
		}
		b.WriteString("</tr>")
	}
	b.WriteString("</table></div>")
}

// shown lists the n lines that become curves: the one that the page is about, and the best of the others.
func (r *Report) shown(n int) []int {
	var out []int
	own := r.own()
	out = append(out, own)
	for i := range r.Lines {
		if i != own && len(out) < n {
			out = append(out, i)
		}
	}
	return out
}

// distributions draws the cumulative distributions.
func (r *Report) distributions(b *strings.Builder) {
	for _, c := range []struct {
		title string
		of    func(*Policy) *sim.Dist
		limit float64
	}{
		{"Time to first token", func(p *Policy) *sim.Dist { return &p.ttft }, r.SLO.TTFT},
		{"Time per further token", func(p *Policy) *sim.Dist { return &p.tpot }, r.SLO.TPOT},
		{"Whole answer", func(p *Policy) *sim.Dist { return &p.e2e }, 0},
	} {
		lo, hi := math.Inf(1), 0.0
		for _, i := range r.shown(most) {
			d := c.of(&r.Lines[i])
			if d.N > 0 {
				lo, hi = min(lo, d.Quantile(0.005).Seconds()), max(hi, d.Quantile(0.998).Seconds())
			}
		}
		if hi == 0 {
			continue
		}
		x := axis{lo: max(lo*0.8, 1e-5), hi: max(hi*1.2, lo*10), log: true}
		ch := newChart(c.title, 260, x, axis{lo: 0, hi: 100}, tickTime, func(v float64) string { return number(v) + " %" })
		ch.limit(c.limit, "limit")
		ch.limit(r.longLimit(c.title), "long prompts")
		var curves []curve
		for k, i := range r.shown(most) {
			v := curve{name: r.Lines[i].Name, class: fmt.Sprintf("c%d", k)}
			cumulate(c.of(&r.Lines[i]), &v)
			curves = append(curves, v)
		}
		for k := len(curves) - 1; k >= 0; k-- { // the own one last, above the others
			ch.line(curves[k])
		}
		fmt.Fprintf(b, `<figure><figcaption>%s <small>share of requests within a time</small></figcaption>%s%s</figure>`, c.title, ch, legend(curves))
	}
}

func (r *Report) longLimit(title string) float64 {
	if title == "Time to first token" && r.SLO.LongTTFT != r.SLO.TTFT {
		return r.SLO.LongTTFT
	}
	return 0
}

// cumulate fills v with the distribution, in steps of at least half a percent.
func cumulate(d *sim.Dist, v *curve) {
	last := -1.0
	d.Points(func(t time.Duration, share float64) {
		if share-last >= 0.004 || share == 1 {
			v.x, v.y = append(v.x, t.Seconds()), append(v.y, 100*share)
			last = share
		}
	})
}
