package scrape

import (
	"bytes"
	"errors"
	"math"
	"strconv"
)

// ErrNoSeries says that a page holds none of the series that are understood: statistics are switched off, it is
// another program's page, or not a metrics page at all.
var ErrNoSeries = errors.New("reading metrics: no known series")

// maxRanks bounds the data-parallel ranks of one page.
const maxRanks = 64

// Page reads metrics pages. It is reused: Parse starts anew and does not allocate in the steady state. It is not
// safe for concurrent use.
type Page struct {
	names   table
	engine  string
	skipped int
	known   int
	global  rank // series that are not of a rank
	ranks   []rank
}

// rank is what one data-parallel rank said; NaN where it said nothing.
type rank struct {
	key     []byte // the label's value, still escaped; points into the page while Parse runs
	v       [roleCount]float64
	caching int8 // 0 unknown, 1 on, -1 off
	length  float64
}

func (r *rank) reset(key []byte) {
	r.key, r.caching, r.length = key, 0, math.NaN()
	for i := range r.v {
		r.v[i] = math.NaN()
	}
}

// NewPage returns a Page that knows every engine's names.
func NewPage() *Page { return &Page{names: names(), ranks: make([]rank, 0, 1)} }

// Parse reads one page in the text exposition format. Lines that are malformed or hold NaN or absurd values are
// skipped and counted; only a page without any known series is an error, ErrNoSeries.
func (p *Page) Parse(body []byte) error {
	p.engine, p.skipped, p.known, p.ranks = "", 0, 0, p.ranks[:0]
	p.global.reset(nil)
	for len(body) > 0 {
		line := body
		if end := bytes.IndexByte(body, '\n'); end >= 0 {
			line, body = body[:end], body[end+1:]
		} else {
			body = nil
		}
		if len(line) > 0 && (line[0] == ' ' || line[0] == '\t') {
			line = skipBlank(line)
		}
		if maybe(line) {
			p.line(line)
		}
	}
	for i := range p.ranks {
		p.ranks[i].key = nil // the page is the caller's
	}
	if p.known == 0 {
		return ErrNoSeries
	}
	return nil
}

// line takes one line that may be of use.
func (p *Page) line(line []byte) {
	end := nameEnd(line)
	meanings, ok := p.names[string(line[:end])]
	if !ok {
		return
	}
	var s sample
	if err := s.cut(line, end); err != nil {
		p.skipped++
		return
	}
	m, ok := meaning(meanings, &s)
	if !ok {
		return
	}
	if !m.role.believable(s.value) {
		p.skipped++
		return
	}
	r := p.rankOf(&s)
	if r == nil {
		p.skipped++
		return
	}
	if e := engineOf(s.name); e != "" {
		p.engine = e
		p.known++
	}
	if m.role.kind() == kindInfo {
		r.config(m.role, &s)
		return
	}
	r.add(m.role, s.value)
}

// meaning finds the series whose label has the wanted value.
func meaning(of []series, s *sample) (series, bool) {
	for _, m := range of {
		if m.label == "" {
			return m, true
		}
		if val, ok := s.label(m.label); ok && string(val) == m.want {
			return m, true
		}
	}
	return series{}, false
}

// rankOf finds the data-parallel rank of a sample, nil if there are too many or if the sample repeats what
// another worker of the same rank says.
func (p *Page) rankOf(s *sample) *rank {
	key, ok := s.label("engine") // vLLM
	if !ok {
		key, ok = s.label("dp_rank") // SGLang
	}
	if !ok {
		key = nil
	}
	for i := range p.ranks {
		if bytes.Equal(p.ranks[i].key, key) {
			return &p.ranks[i]
		}
	}
	if len(p.ranks) == maxRanks {
		return nil
	}
	if len(p.ranks) < cap(p.ranks) {
		p.ranks = p.ranks[:len(p.ranks)+1]
	} else {
		p.ranks = append(p.ranks, rank{})
	}
	r := &p.ranks[len(p.ranks)-1]
	r.reset(key)
	return r
}

// add puts a value to those of the same role. Several gauges of one rank are the same thing seen by several
// processes; several counters of one rank are parts of a whole.
func (r *rank) add(what role, v float64) {
	have := r.v[what]
	switch {
	case math.IsNaN(have):
		r.v[what] = v
	case what.kind() == kindCounter:
		r.v[what] = have + v
	default:
		r.v[what] = max(have, v)
	}
}

// config reads the labels of a configuration series.
func (r *rank) config(what role, s *sample) {
	if what == roleConfigSGLang {
		r.v[roleBlockSize] = s.number("page_size")
		r.v[roleBlocks] = s.number("num_pages")
		return
	}
	block, blocks, size := s.number("block_size"), s.number("num_gpu_blocks"), s.number("kv_cache_size_tokens")
	if concurrency := s.number("kv_cache_max_concurrency"); concurrency > 0 {
		r.length = math.Round(size / concurrency)
	}
	// One block is the null block, which holds nothing. kv_cache_size_tokens counts it. For hybrid models blocks
	// times block size is not the capacity; the size in tokens is.
	r.v[roleBlocks] = max(blocks-1, 0)
	if block > 0 && blocks > 1 {
		r.v[roleCapacityTokens] = block * (blocks - 1)
	}
	if size > 0 {
		r.v[roleCapacityTokens] = size
		if blocks > 1 {
			r.v[roleCapacityTokens] = size * (blocks - 1) / blocks
		}
	}
	r.v[roleBlockSize] = block
	if align := s.number("cache_hit_alignment_tokens"); align > 0 {
		r.v[roleBlockSize] = align // hits come in these steps only
	}
	switch val, _ := s.label("enable_prefix_caching"); string(val) {
	case "True", "true", "1":
		r.caching = 1
	case "False", "false", "0":
		r.caching = -1
	}
}

// number reads a label as a number in (0, 1e15), NaN if it is anything else ("None", missing).
func (s *sample) number(label string) float64 {
	val, ok := s.label(label)
	if !ok || len(val) == 0 || len(val) > 64 || val[0] < '0' || val[0] > '9' {
		return math.NaN()
	}
	v, err := strconv.ParseFloat(string(val), 64)
	if err != nil || !(v > 0 && v < 1e15) {
		return math.NaN()
	}
	return v
}
