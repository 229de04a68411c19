package config

import (
	"fmt"
	"strconv"
	"time"
)

// Workload is made-up traffic for pointsman sim run.
type Workload struct {
	// Length (`length`, default 7m) is how long requests arrive.
	Length time.Duration

	// Classes (`classes`, required) are kinds of requests that come beside each other.
	Classes []WorkloadClass

	// Endpoints (`endpoints`, default none) says how single endpoints differ from the others, and when they join, leave and fail.
	Endpoints []SimEndpoint
}

// WorkloadClass is one kind of requests: conversations that begin at random, so many per second.
type WorkloadClass struct {
	Name   string  // `name`, required: what reports call it
	Rate   float64 // `rate`, required: conversations that begin per second
	Prompt [2]int  // `prompt`, required: tokens of each turn's own text, from and to
	Output [2]int  // `output`, required: tokens of an answer, from and to

	Texts int     // `shared.texts`, default 1: how many different beginnings there are
	Share int     // `shared.tokens`, default 0: tokens that a conversation has in common with all others of the same beginning
	Zipf  float64 // `shared.zipf`, default 0: how unevenly the beginnings are used; 0: evenly

	Turns    int           // `turns`, default 1: each further turn begins with all that was said before
	Think    time.Duration // `think`, default 0s: from an answer to the next turn, mean of an exponential
	Patience time.Duration // `patience`, default 0s: after which a client goes away whose answer is not complete; 0: it waits
	TTFT     time.Duration // `ttft`, default 0s: within which the first token must come; 0: as pointsman sim run says
}

// ParseWorkload reads a workload in YAML; name stands for the file in errors. The error is an Errors.
func ParseWorkload(name string, data []byte) (*Workload, error) {
	w := &Workload{Length: 7 * time.Minute}
	d := newDecoder(name)
	root, ok := d.document(data)
	if ok {
		d.object(root, []field{
			{"length", func(d *decoder, v value) { d.duration(v, &w.Length, time.Second, longest) }},
			{"classes", func(d *decoder, v value) { d.workloadClasses(v, w) }},
			{"endpoints", func(d *decoder, v value) { d.simEndpoints(v, &w.Endpoints) }},
		})
	}
	if len(d.errs) == 0 && len(w.Classes) == 0 {
		d.fail(root, "has no classes", "write classes: [{name: chat, rate: 2, prompt: [400, 1200], output: [100, 500]}]")
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return w, nil
}

func (d *decoder) workloadClasses(v value, w *Workload) {
	for _, item := range d.list(v, "classes", 64) {
		c := WorkloadClass{Texts: 1, Turns: 1}
		before := len(d.errs)
		d.object(item, workloadClassFields(&c))
		if len(d.errs) == before && (c.Name == "" || c.Rate == 0 || c.Prompt[1] == 0 || c.Output[1] == 0) {
			d.fail(item, "is not complete", "a class has name, rate, prompt and output")
		}
		w.Classes = append(w.Classes, c)
	}
}

func workloadClassFields(c *WorkloadClass) []field {
	return []field{
		{"name", func(d *decoder, v value) { d.str(v, &c.Name) }},
		{"rate", func(d *decoder, v value) { d.number(v, &c.Rate, 1e-4, 1e4) }},
		{"prompt", func(d *decoder, v value) { d.fromTo(v, &c.Prompt) }},
		{"output", func(d *decoder, v value) { d.fromTo(v, &c.Output) }},
		{"shared", func(d *decoder, v value) {
			d.object(v, []field{
				{"texts", func(d *decoder, v value) { d.integer(v, &c.Texts, 1, 1_000_000) }},
				{"tokens", func(d *decoder, v value) { d.integer(v, &c.Share, 0, 1_000_000) }},
				{"zipf", func(d *decoder, v value) { d.number(v, &c.Zipf, 0, 4) }},
			})
		}},
		{"turns", func(d *decoder, v value) { d.integer(v, &c.Turns, 1, 1000) }},
		{"think", func(d *decoder, v value) { d.pause(v, &c.Think, 0, longest) }},
		{"patience", func(d *decoder, v value) { d.pause(v, &c.Patience, 0, longest) }},
		{"ttft", func(d *decoder, v value) { d.pause(v, &c.TTFT, 0, longest) }},
	}
}

// number reads a number of [lo, hi].
func (d *decoder) number(v value, dst *float64, lo, hi float64) {
	n, err := strconv.ParseFloat(v.text, 64)
	if v.kind != kindInt && v.kind != kindFloat || err != nil || !(n >= lo && n <= hi) {
		d.fail(v, fmt.Sprintf("want a number from %g to %g", lo, hi), toDefault)
		return
	}
	*dst = n
}

// fromTo reads [from, to].
func (d *decoder) fromTo(v value, dst *[2]int) {
	before := len(d.errs)
	items := d.list(v, "whole numbers", 2)
	if len(d.errs) > before {
		return
	}
	if len(items) != 2 {
		d.fail(v, "want two whole numbers, from and to", "write [100, 500]")
		return
	}
	d.integer(items[0], &dst[0], 1, 1_000_000)
	d.integer(items[1], &dst[1], 1, 1_000_000)
	if len(d.errs) == before && dst[0] > dst[1] {
		d.fail(v, "goes down", "write the smaller number first")
	}
}
