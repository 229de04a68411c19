package routecase

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"pointsman.dev/pointsman/internal/route"
)

// Bounds of what a case may ask for.
const (
	maxEndpoints = 1000
	maxTokens    = 1 << 30
	maxBlocks    = 10000
)

// scene is one pool and what is asked of it.
type scene struct {
	snap        route.Snapshot
	blockTokens float64
	names       []string
	holds       [][]string
	asks        []ask
}

// ask is one request and what is wanted of its pick.
type ask struct {
	request route.Request
	blocks  []string
	line    int
	wants   []line
}

func countLines(b []byte) int { return bytes.Count(b, []byte("\n")) }

func splitLines(b []byte) [][]string {
	var out [][]string
	for l := range strings.Lines(string(b)) {
		l, _, _ = strings.Cut(l, "#")
		out = append(out, strings.Fields(l))
	}
	return out
}

// parser builds scenes section by section.
type parser struct {
	name   string
	scenes []scene
	next   scene  // settings read, pool not yet
	last   string // section before
	errs   []error
}

func (p *parser) fault(n int, format string, args ...any) {
	p.errs = append(p.errs, fault(p.name, n, format, args...))
}

func freshScene() scene {
	return scene{snap: route.Snapshot{Params: route.DefaultParams()}, blockTokens: 256}
}

func parse(name string, data []byte) ([]scene, error) {
	p := &parser{name: name, next: freshScene()}
	list := sections(data)
	if len(list) == 0 {
		return nil, fault(name, 1, "reading case: no section, want -- pool --, -- request -- and -- want --")
	}
	for _, s := range list {
		if !p.section(s) { // what follows has no place to stand
			return nil, errors.Join(p.errs...)
		}
		p.last = s.name
	}
	last := list[len(list)-1]
	if p.last != "want" {
		p.fault(last.line, "reading case: it ends with %q, want a section \"want\" after it", last.name)
	}
	return p.scenes, errors.Join(p.errs...)
}

// after lists the sections that may stand before each.
var after = map[string][]string{
	"settings": {"", "want"},
	"pool":     {"", "settings", "want"},
	"request":  {"pool", "want"},
	"want":     {"request"},
}

// section reads one section; false when it is unknown or stands in the wrong place.
func (p *parser) section(s section) bool {
	before, ok := after[s.name]
	switch {
	case !ok:
		p.fault(s.line, "reading section %q: unknown, want settings, pool, request or want", s.name)
		return false
	case !slices.Contains(before, p.last):
		p.fault(s.line, "reading section %q: it stands after %q, want it after one of %q", s.name, p.last, before)
		return false
	}
	switch s.name {
	case "settings":
		p.next = freshScene()
		for _, l := range s.lines {
			p.settings(l)
		}
	case "pool":
		sc := p.next
		p.next = freshScene()
		p.next.snap.Params, p.next.blockTokens, p.next.snap.Regret = sc.snap.Params, sc.blockTokens, sc.snap.Regret
		p.pool(&sc, s)
		p.scenes = append(p.scenes, sc)
	case "request":
		p.request(&p.scenes[len(p.scenes)-1], s)
	case "want":
		p.want(s)
	}
	return true
}

func (p *parser) want(s section) {
	sc := &p.scenes[len(p.scenes)-1]
	if len(s.lines) == 0 {
		p.fault(s.line, "reading section \"want\": it is empty")
	}
	a := &sc.asks[len(sc.asks)-1]
	a.wants = s.lines
	for _, l := range s.lines {
		if err := sc.check(l.words); err != "" {
			p.fault(l.number, "%s", err)
		}
	}
}

// pairs calls set for every key=value of a line; a bare word has an empty value.
func (p *parser) pairs(l line, words []string, set func(key, value string) string) {
	for _, w := range words {
		key, value, has := strings.Cut(w, "=")
		if has && value == "" {
			p.fault(l.number, "reading %s: no value after =", key)
			continue
		}
		if err := set(key, value); err != "" {
			p.fault(l.number, "reading %s: %s", w, err)
		}
	}
}

// number parses a decimal in [lo, hi].
func number(value string, lo, hi float64) (float64, string) {
	v, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsNaN(v) {
		return 0, "want a number"
	}
	if v < lo || v > hi {
		return 0, "want a number from " + trim(lo) + " to " + trim(hi)
	}
	return v, ""
}

func trim(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// word looks a value up among those that a setting knows.
func word[T interface {
	~uint8
	String() string
}](value string, known ...T) (T, string) {
	names := make([]string, len(known))
	for i, k := range known {
		if names[i] = k.String(); names[i] == value {
			return k, ""
		}
	}
	return 0, "want one of " + strings.Join(names, ", ")
}
