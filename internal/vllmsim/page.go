package vllmsim

import (
	"math"
	"strconv"
	"strings"

	"pointsman.dev/pointsman/internal/engine"
)

// reading is what one page shows.
type reading struct {
	engine engine.Stats
	book   book
	asleep int
	blocks int
}

// cell is one sample: the text before its value, headers of a new family included, and the value.
type cell struct {
	text string
	get  func(*reading) float64
}

// metricsPage is a page whose texts are laid out once; a scrape fills in the values.
type metricsPage struct {
	cells []cell
	tail  func(b []byte, r *reading) []byte // families whose series come with use
}

func (p *metricsPage) render(r *reading) []byte {
	b := make([]byte, 0, 96<<10)
	for _, c := range p.cells {
		b = append(b, c.text...)
		b = append(appendMetric(b, c.get(r)), '\n')
	}
	if p.tail != nil {
		b = p.tail(b, r)
	}
	return b
}

// appendMetric formats a value as the Python client library does: repr, and an exponent from 1e6 on.
func appendMetric(b []byte, v float64) []byte {
	switch {
	case math.IsInf(v, 1):
		return append(b, "+Inf"...)
	case v < 1e6 || v >= 1e16:
		return appendFloat(b, v)
	}
	s := string(appendFloat(nil, v))
	dot := strings.IndexByte(s, '.')
	mantissa := strings.TrimRight(s[:1]+"."+s[1:dot]+s[dot+1:], "0.")
	b = append(append(b, mantissa...), "e+0"...)
	return strconv.AppendInt(b, int64(dot-1), 10)
}

// builder lays out a page.
type builder struct {
	cells   []cell
	pending strings.Builder
	created float64 // unix seconds; every family is a little younger than the one before
}

func (p *builder) header(name, help, kind string) {
	p.pending.WriteString("# HELP " + name + " " + help + "\n# TYPE " + name + " " + kind + "\n")
}

func (p *builder) sample(name, labels string, get func(*reading) float64) {
	if labels != "" {
		labels = "{" + labels + "}"
	}
	p.pending.WriteString(name + labels + " ")
	p.cells = append(p.cells, cell{p.pending.String(), get})
	p.pending.Reset()
}

func (p *builder) constant(name, labels string, v float64) {
	p.sample(name, labels, func(*reading) float64 { return v })
}

// series is one labelled value of a family.
type series struct {
	labels string
	get    func(*reading) float64
}

func (p *builder) gauge(name, help string, all ...series) {
	p.header(name, help, "gauge")
	for _, s := range all {
		p.sample(name, s.labels, s.get)
	}
}

// counter lays out name_total and the creation times that go with it; name is without _total.
func (p *builder) counter(name, help string, all ...series) {
	p.header(name+"_total", help, "counter")
	for _, s := range all {
		p.sample(name+"_total", s.labels, s.get)
	}
	p.header(name+"_created", help, "gauge")
	for _, s := range all {
		p.created += 5e-7
		p.constant(name+"_created", s.labels, p.created)
	}
}

// histogram lays out a histogram whose other labels are the engine and the model.
func (p *builder) histogram(name, help, model string, bounds []float64, of func(*reading) *histogram) {
	p.header(name, help, "histogram")
	for i := range bounds {
		p.sample(name+"_bucket", `engine="0",le="`+string(appendMetric(nil, bounds[i]))+`",`+model, func(r *reading) float64 { return of(r).below(i) })
	}
	p.sample(name+"_bucket", `engine="0",le="+Inf",`+model, func(r *reading) float64 { return float64(of(r).n) })
	p.sample(name+"_count", `engine="0",`+model, func(r *reading) float64 { return float64(of(r).n) })
	p.sample(name+"_sum", `engine="0",`+model, func(r *reading) float64 { return of(r).sum })
	p.header(name+"_created", help, "gauge")
	p.created += 5e-7
	p.constant(name+"_created", `engine="0",`+model, p.created)
}

// below is the cumulative count up to bound i.
func (h *histogram) below(i int) float64 {
	n := uint64(0)
	for _, c := range h.counts[:i+1] {
		n += c
	}
	return float64(n)
}

// process lays out what the Python client library says of its process. Only the start time means something here.
func (p *builder) process(start float64) {
	p.header("python_gc_objects_collected_total", "Objects collected during gc", "counter")
	for i, v := range []float64{14630, 3206, 626} {
		p.constant("python_gc_objects_collected_total", `generation="`+strconv.Itoa(i)+`"`, v)
	}
	p.header("python_gc_objects_uncollectable_total", "Uncollectable objects found during GC", "counter")
	for i := range 3 {
		p.constant("python_gc_objects_uncollectable_total", `generation="`+strconv.Itoa(i)+`"`, 0)
	}
	p.header("python_gc_collections_total", "Number of times this generation was collected", "counter")
	for i, v := range []float64{1597, 145, 10} {
		p.constant("python_gc_collections_total", `generation="`+strconv.Itoa(i)+`"`, v)
	}
	p.header("python_info", "Python platform information", "gauge")
	p.constant("python_info", `implementation="CPython",major="3",minor="11",patchlevel="7",version="3.11.7"`, 1)
	for _, m := range []struct {
		name, help, kind string
		v                float64
	}{
		{"process_virtual_memory_bytes", "Virtual memory size in bytes.", "gauge", 4723253248},
		{"process_resident_memory_bytes", "Resident memory size in bytes.", "gauge", 944336896},
		{"process_start_time_seconds", "Start time of the process since unix epoch in seconds.", "gauge", start},
		{"process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", "counter", 10.15},
		{"process_open_fds", "Number of open file descriptors.", "gauge", 34},
		{"process_max_fds", "Maximum number of open file descriptors.", "gauge", 20000},
	} {
		p.header(m.name, m.help, m.kind)
		p.constant(m.name, "", m.v)
	}
}
