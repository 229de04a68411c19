package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// SimEndpoint says how some endpoints of a simulated fleet differ from the others, in pointsman sim run --endpoint and in the workload's
// YAML. The zero value of a field means: as the others.
type SimEndpoint struct {
	First, Last int    // which endpoints, counted from 0
	Text        string // the keys as they were written, for a report,
	Where       string // and where: file:line, or the flag

	Speed            float64 // `speed`: 0.5 is half as fast
	KVTokens         int     // `kv_tokens`
	BlockSize        int     // `block_size`
	MaxNumSeqs       int     // `max_num_seqs`
	MaxBatchedTokens int     // `max_num_batched_tokens`
	Ranks            int     // `ranks`: data-parallel engines behind the address
	PrefixCaching    *bool   // `prefix_caching`

	Join  time.Duration // `join`: when it appears
	Warm  bool          // `warm`: it has a full cache then
	Leave time.Duration // `leave`: when it is taken away; it finishes what it has
	Down  []SimSpan     // `down`: when its process is not there
	Hang  []SimSpan     // `hang`: when its process stands still

	Foreign       float64 // `foreign`: requests per second that come past the gateway
	ForeignPrompt int     // `foreign_prompt`: their mean tokens; 1000 when 0
	ForeignOutput int     // `foreign_output`: and those of their answers; 200 when 0
}

// SimSpan is from when to when something lasts; To 0: to the end.
type SimSpan struct{ From, To time.Duration }

const (
	maxSimEndpoints = 1024
	simEndpointHint = "write NUMBER:KEY=VALUE, as in 0:speed=0.5,kv_tokens=64000 or 2-3:join=60s"
)

// ParseSimEndpoint reads what a flag of this name was given: NUMBER:KEY=VALUE,KEY=VALUE,... with the keys of the workload's `endpoints`;
// NUMBER may be a range like 2-3. The error is an Errors.
func ParseSimEndpoint(flag, text string) (SimEndpoint, error) {
	d := newDecoder(flag)
	v := flagValue(flag, text)
	number, rest, ok := strings.Cut(text, ":")
	e, numbered := simNumbers(number)
	switch {
	case !ok && numbered:
		d.fail(v, "says nothing of that endpoint", "--endpoints "+text+" is how many there are; else "+simEndpointHint)
	case !ok || !numbered:
		d.fail(v, fmt.Sprintf("want the number of an endpoint, 0 to %d, a colon, and what is different there", maxSimEndpoints-1), simEndpointHint)
	default:
		fields, given := simEndpointFields(&e), map[string]bool{}
		for word := range strings.SplitSeq(rest, ",") {
			key, val, ok := strings.Cut(word, "=")
			key = strings.TrimSpace(key)
			kv := scalarOf(flag, strings.TrimSpace(val))
			kv.path = number + "." + printable(key)
			f := find(fields, key)
			switch {
			case f == nil:
				rule, hint := unknownKey(key, kv.path, fields)
				d.failShowing(kv, "", rule, hint)
			case !ok || kv.text == "":
				d.failShowing(kv, "", "has no value", "write "+key+"=...")
			case given[key] && key != "down" && key != "hang":
				d.failShowing(kv, "", "set a second time", "keep one of them")
			default:
				f.read(d, kv)
			}
			given[key] = true
		}
		e.Text, e.Where = strings.ReplaceAll(strings.ReplaceAll(rest, "=", " "), ",", ", "), flag+" "+text
		d.coherent(v, number, &e)
	}
	return e, d.err()
}

// scalarOf is a value of a flag with the kind that YAML would see in it.
func scalarOf(flag, text string) value {
	v := flagValue(flag, text)
	if _, err := strconv.ParseInt(text, 0, 64); err == nil {
		v.kind = kindInt
	} else if _, err := strconv.ParseFloat(text, 64); err == nil {
		v.kind = kindFloat
	} else if text == "true" || text == "false" {
		v.kind = kindBool
	}
	return v
}

// simNumbers reads 3 or 2-5.
func simNumbers(text string) (e SimEndpoint, ok bool) {
	from, to, several := strings.Cut(strings.TrimSpace(text), "-")
	if !several {
		to = from
	}
	first, err := strconv.ParseUint(from, 10, 32)
	last, err2 := strconv.ParseUint(to, 10, 32)
	e.First, e.Last = int(first), int(last)
	return e, err == nil && err2 == nil && first <= last && last < maxSimEndpoints
}

// simEndpoints reads a mapping from numbers of endpoints to what is different there.
func (d *decoder) simEndpoints(v value, dst *[]SimEndpoint) {
	if v.kind != kindMap {
		d.wrongKind(v, "a mapping like 0: {speed: 0.5}")
		return
	}
	lines := map[string]int{}
	for _, entry := range d.entries(v, 0) {
		e, ok := simNumbers(entry.key.text)
		if first, again := lines[entry.key.text]; again {
			d.failShowing(entry.key, "", fmt.Sprintf("set a second time, first in line %d", first), "keep one of them")
			continue
		}
		lines[entry.key.text] = entry.key.line
		if !ok {
			d.failShowing(entry.key, "", fmt.Sprintf("want the number of an endpoint from 0 to %d, or a range of them", maxSimEndpoints-1), "write 0: {speed: 0.5} or 2-3: {join: 60s}")
			continue
		}
		val := d.valueOf(entry.val, entry.key.path)
		d.object(val, simEndpointFields(&e))
		var said []string
		for _, kv := range d.entries(val, 0) {
			said = append(said, kv.key.text+" "+kv.val.String())
		}
		e.Text, e.Where = strings.Join(said, ", "), fmt.Sprintf("%s:%d", d.name, entry.key.line)
		d.coherent(entry.key, entry.key.path, &e)
		*dst = append(*dst, e)
	}
}

// coherent checks what must hold between the keys of one endpoint.
func (d *decoder) coherent(v value, path string, e *SimEndpoint) {
	v.path = path
	fail := func(rule, hint string) { d.failShowing(v, "", rule, hint) }
	switch {
	case e.Warm && e.Join == 0:
		fail("is warm from the start, when nothing is cached anywhere", "say when it joins: join")
	case e.Leave > 0 && e.Leave <= e.Join:
		fail("leaves before it joins", "put leave after join")
	case (e.ForeignPrompt > 0 || e.ForeignOutput > 0) && e.Foreign == 0:
		fail("has lengths of foreign requests and no such requests", "say how many come per second: foreign")
	}
	for _, s := range append(e.Down[:len(e.Down):len(e.Down)], e.Hang...) {
		if s.From < e.Join {
			fail("is down or hangs before it joins", "put join first")
		}
	}
}

func simEndpointFields(e *SimEndpoint) []field {
	count := func(dst *int, lo, hi int) func(*decoder, value) {
		return func(d *decoder, v value) { d.integer(v, dst, lo, hi) }
	}
	at := func(dst *time.Duration) func(*decoder, value) {
		return func(d *decoder, v value) { d.duration(v, dst, time.Millisecond, longest) }
	}
	return []field{
		{"speed", func(d *decoder, v value) { d.number(v, &e.Speed, 0.01, 100) }},
		{"kv_tokens", count(&e.KVTokens, 1, 1_000_000_000)},
		{"block_size", count(&e.BlockSize, 1, 1_000_000)},
		{"max_num_seqs", count(&e.MaxNumSeqs, 1, 1_000_000)},
		{"max_num_batched_tokens", count(&e.MaxBatchedTokens, 1, 100_000_000)},
		{"ranks", count(&e.Ranks, 1, 256)},
		{"prefix_caching", func(d *decoder, v value) {
			var on bool
			d.boolean(v, &on)
			e.PrefixCaching = &on
		}},
		{"join", at(&e.Join)},
		{"warm", func(d *decoder, v value) { d.boolean(v, &e.Warm) }},
		{"leave", at(&e.Leave)},
		{"down", func(d *decoder, v value) { d.spans(v, &e.Down) }},
		{"hang", func(d *decoder, v value) { d.spans(v, &e.Hang) }},
		{"foreign", func(d *decoder, v value) { d.number(v, &e.Foreign, 1e-4, 1e4) }},
		{"foreign_prompt", count(&e.ForeignPrompt, 1, 1_000_000)},
		{"foreign_output", count(&e.ForeignOutput, 1, 1_000_000)},
	}
}

// spans adds a span like 30s-90s, or a list of them.
func (d *decoder) spans(v value, dst *[]SimSpan) {
	if v.kind == kindList {
		for _, item := range d.list(v, "spans", 64) {
			d.spans(item, dst)
		}
		return
	}
	from, to, ends := strings.Cut(v.text, "-")
	var s SimSpan
	var err, err2 error
	s.From, err = time.ParseDuration(strings.TrimSpace(from))
	if ends {
		s.To, err2 = time.ParseDuration(strings.TrimSpace(to))
	}
	switch {
	case v.kind > kindFloat || err != nil || err2 != nil || s.From < 0 || s.To > longest || s.From > longest:
		d.fail(v, "want from when to when, like 30s-90s", "write 30s-90s; 30s alone lasts to the end")
	case ends && s.To <= s.From:
		d.fail(v, "ends before it begins", "write the earlier time first")
	default:
		*dst = append(*dst, s)
	}
}
