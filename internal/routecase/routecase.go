// Package routecase reads and runs routing cases: small txtar files that an operator can read, each a pool, requests and
// the picks that are wanted. They are the executable description of package route and run with "pointsman check".
//
//	# a warm prefix beats a shorter queue until waiting costs more than the prefill saved
//	-- settings --
//	block_tokens=1000
//	-- pool --
//	a running=3 kv=0.41 holds=h1,h2
//	b running=1 kv=0.10
//	-- request --
//	blocks=h1,h2,h3
//	-- want --
//	pick a
//
// Sections come in this order, the first one at will; request and want may be repeated for the same pool, and a new pool
// (or new settings) begins another scene. A line is words separated by spaces; # begins a comment.
//
// settings: policy (prefix, least_request), gates (default, strict, off), when_full (seconds, requests), waiting, projected_kv,
// long_prompt (as in the config file), profile (a name of route.Profile), mean_output, scale, regret, and
// block_tokens, the tokens of one named block (256).
//
// pool: one endpoint per line, its name first. What the engine reports: running, waiting, kv, max_num_seqs, capacity (tokens), block
// (tokens of a KV block), unknown (there is no fresh report). Running requests are ours unless foreign=N says how many are
// not, waiting ones are not ours. Ours: queued=N requests without a first token, booked=N tokens that these have to
// prefill, prompts=N tokens of all our prompts, context=N tokens of the decoding ones, output=N tokens streamed, growth=N
// tokens expected of their answers and not streamed yet. What the cache holds: holds=block,block,... . Judgement: kappa,
// rho, penalty (seconds), health (normal, trial, avoid, last_resort).
//
// request: blocks=name,name,... and tokens=N for what follows them or stands alone; max_tokens=N.
//
// want: pick NAME, pick NAME or NAME (each of them comes up and no other), pick none, never NAME, reason WORD, full NAME... (exactly
// these; "full none"), hit NAME TOKENS, cost NAME < NAME, cost NAME < SECONDS, cost NAME > SECONDS, gate NAME GATE fails,
// gate NAME GATE passes.
package routecase

import (
	"errors"
	"fmt"

	"golang.org/x/tools/txtar"
)

// Run parses and runs the routing case in data. name is used in errors, which start with name:line; there is one for
// each line that is wrong or whose wish is not met.
func Run(name string, data []byte) error {
	scenes, err := parse(name, data)
	if err != nil {
		return err
	}
	var all []error
	for i := range scenes {
		all = append(all, scenes[i].run(name)...)
	}
	return errors.Join(all...)
}

// fault is what is wrong with one line.
func fault(name string, line int, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s", name, line, fmt.Sprintf(format, args...))
}

// line is one line of a section, without its comment.
type line struct {
	number int
	words  []string
}

type section struct {
	name  string
	line  int // of the marker
	lines []line
}

// sections cuts a txtar archive into lines that know their number.
func sections(data []byte) []section {
	a := txtar.Parse(data)
	at := 1 + countLines(a.Comment)
	out := make([]section, 0, len(a.Files))
	for _, f := range a.Files {
		s := section{name: f.Name, line: at}
		for i, words := range splitLines(f.Data) {
			if len(words) > 0 {
				s.lines = append(s.lines, line{at + 1 + i, words})
			}
		}
		at += 1 + countLines(f.Data)
		out = append(out, s)
	}
	return out
}
