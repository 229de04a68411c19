package report

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// A chart is drawn into a field of this many units; the page scales it to the width that there is.
const (
	chartWide = 640
	left      = 76 // room for the numbers of the vertical axis
	right     = 24
	top       = 16
	bottom    = 36 // and for those of the horizontal one
)

// curve is a line of a chart; what is NaN is not drawn.
type curve struct {
	name  string
	class string // of CSS: c0 to c6
	x, y  []float64
}

// axis maps values to units.
type axis struct {
	lo, hi   float64
	from, to float64 // units
	log      bool
	unit     float64 // what ticks are round in; 1 when 0
}

func (a axis) at(v float64) float64 {
	lo, hi := a.lo, a.hi
	if a.log {
		v, lo, hi = math.Log(max(v, a.lo)), math.Log(a.lo), math.Log(a.hi)
	}
	if hi <= lo {
		return a.from
	}
	return a.from + (a.to-a.from)*(min(max(v, lo), hi)-lo)/(hi-lo)
}

// ticks returns where the axis is marked.
func (a axis) ticks() []float64 {
	var out []float64
	if a.log {
		for d := math.Pow(10, math.Floor(math.Log10(a.lo))); d <= a.hi*1.0001; d *= 10 {
			for _, m := range []float64{1, 3} {
				if v := d * m; v >= a.lo*0.9999 && v <= a.hi*1.0001 && (m == 1 || a.hi/a.lo < 300) {
					out = append(out, v)
				}
			}
		}
		return out
	}
	unit := a.unit
	if unit == 0 {
		unit = 1
	}
	step := unit * niceStep((a.hi-a.lo)/5/unit)
	for v := math.Ceil(a.lo/step) * step; v <= a.hi+step/1e6; v += step {
		out = append(out, v)
	}
	return out
}

// niceStep is the next of 1, 2, 5 times a power of ten.
func niceStep(v float64) float64 {
	if !(v > 0) {
		return 1
	}
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if v <= m*p*1.0001 {
			return m * p
		}
	}
	return 10 * p
}

// niceTop is where an axis from 0 ends that has room for v.
func niceTop(v float64) float64 {
	step := niceStep(v / 4)
	return max(step, math.Ceil(v/step)*step)
}

// number is a label without needless digits.
func number(v float64) string {
	s := fmt.Sprintf("%.3g", v)
	if math.Abs(v) >= 1000 {
		s = fmt.Sprintf("%.0f", v)
	}
	return s
}

// tickTime is a duration in seconds on an axis.
func tickTime(seconds float64) string {
	switch {
	case seconds == 0:
		return "0"
	case seconds < 0.9999:
		return number(seconds*1e3) + "ms"
	}
	return number(seconds) + "s"
}

// chart is a field with two axes.
type chart struct {
	b      strings.Builder
	x, y   axis
	height int
}

func newChart(title string, height int, x, y axis, xname, yname func(float64) string) *chart {
	x.from, x.to = left, chartWide-right
	y.from, y.to = float64(height-bottom), top
	c := &chart{x: x, y: y, height: height}
	fmt.Fprintf(&c.b, `<svg class="chart" viewBox="0 0 %d %d" role="img" aria-label="%s">`, chartWide, height, html.EscapeString(title))
	for _, v := range y.ticks() {
		fmt.Fprintf(&c.b, `<path class="grid" d="M%d %.1fH%d"/><text class="tick" x="%d" y="%.1f" text-anchor="end">%s</text>`,
			left, y.at(v), chartWide-right, left-6, y.at(v)+5, html.EscapeString(yname(v)))
	}
	for _, v := range x.ticks() {
		fmt.Fprintf(&c.b, `<path class="grid" d="M%.1f %dV%d"/><text class="tick" x="%.1f" y="%d" text-anchor="middle">%s</text>`,
			x.at(v), top, height-bottom, x.at(v), height-bottom+25, html.EscapeString(xname(v)))
	}
	return c
}

// limit marks a value of the horizontal axis.
func (c *chart) limit(v float64, name string) {
	if v <= 0 || v < c.x.lo || v > c.x.hi {
		return
	}
	x := c.x.at(v)
	anchor, dx := "start", 4.0
	if x > chartWide*0.8 {
		anchor, dx = "end", -4
	}
	fmt.Fprintf(&c.b, `<path class="limit" d="M%.1f %dV%d"/><text class="limit-name" x="%.1f" y="%d" text-anchor="%s">%s</text>`,
		x, top, c.height-bottom, x+dx, c.height-bottom-6, anchor, html.EscapeString(name))
}

// level marks a value of the vertical axis.
func (c *chart) level(v float64, name string) {
	if v <= 0 || v > c.y.hi {
		return
	}
	y := c.y.at(v)
	fmt.Fprintf(&c.b, `<path class="limit" d="M%d %.1fH%d"/><text class="limit-name" x="%d" y="%.1f">%s</text>`, left, y, chartWide-right, left+4, y-4, html.EscapeString(name))
}

func (c *chart) line(v curve) {
	fmt.Fprintf(&c.b, `<path class="line %s" d="`, v.class)
	known := func(i int) bool { return i >= 0 && i < len(v.y) && !math.IsNaN(v.y[i]) }
	for i := range v.x {
		switch {
		case !known(i):
			continue
		case known(i - 1):
			c.b.WriteString("L")
		default:
			c.b.WriteString("M")
		}
		fmt.Fprintf(&c.b, "%.1f %.1f", c.x.at(v.x[i]), c.y.at(v.y[i]))
		if !known(i-1) && !known(i+1) {
			c.b.WriteString("h0") // a dot
		}
	}
	fmt.Fprintf(&c.b, `"><title>%s</title></path>`, html.EscapeString(v.name))
}

func (c *chart) String() string { return c.b.String() + "</svg>" }

// legend names the curves, where there are several.
func legend(curves []curve) string {
	if len(curves) < 2 {
		return ""
	}
	var b strings.Builder
	b.WriteString(`<p class="legend">`)
	for _, c := range curves {
		fmt.Fprintf(&b, `<span><i class="%s"></i>%s</span>`, c.class, html.EscapeString(c.name))
	}
	b.WriteString("</p>")
	return b.String()
}

// strip is one endpoint over time: its KV memory as an area, running requests as a line, waiting ones as bars, and grey where it was not there
// or did not work.
func strip(name string, e *EndpointSeries, n int, mostRunning, mostWaiting float64) string {
	const height, pad = 64, 4
	x := axis{lo: 0, hi: float64(max(1, n)), from: 0, to: chartWide}
	kv := axis{lo: 0, hi: 1, from: height - pad, to: pad}
	run := axis{lo: 0, hi: max(1, mostRunning), from: height - pad, to: pad}
	wait := axis{lo: 0, hi: max(1, mostWaiting), from: height - pad, to: pad}
	var b strings.Builder
	fmt.Fprintf(&b, `<div class="strip"><span>%s</span><svg viewBox="0 0 %d %d" preserveAspectRatio="none" role="img" aria-label="%s over time"><path class="out" d="`,
		html.EscapeString(name), chartWide, height, html.EscapeString(name))
	for i, v := range e.Out {
		if v >= 0.5 {
			fmt.Fprintf(&b, "M%.1f 0H%.1fV%dH%.1fZ", x.at(float64(i)), x.at(float64(i)+1), height, x.at(float64(i)))
		}
	}
	fmt.Fprintf(&b, `"/><path class="kv" d="M0 %d`, height-pad)
	for i, v := range e.KV {
		fmt.Fprintf(&b, "L%.1f %.1f", x.at(float64(i)+0.5), kv.at(v))
	}
	fmt.Fprintf(&b, `L%.1f %dZ"/>`, x.at(float64(len(e.KV))), height-pad)
	b.WriteString(`<path class="wait" d="`)
	for i, v := range e.Waiting {
		if v > 0 {
			fmt.Fprintf(&b, "M%.1f %dV%.1fH%.1fV%dZ", x.at(float64(i)+0.2), height-pad, min(wait.at(v), height-pad-3), x.at(float64(i)+0.8), height-pad)
		}
	}
	b.WriteString(`"/><path class="line run" d="`)
	for i, v := range e.Running {
		pen := "L"
		if i == 0 {
			pen = "M"
		}
		fmt.Fprintf(&b, "%s%.1f %.1f", pen, x.at(float64(i)+0.5), run.at(v))
	}
	b.WriteString(`"/></svg></div>`)
	return b.String()
}
