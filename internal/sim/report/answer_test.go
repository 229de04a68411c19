package report

import (
	"slices"
	"strings"
	"testing"
)

// policy is a line of n endpoints with a goodput and the 95th percentile of its first tokens.
func policy(name string, n int, mean, ttft float64) Policy {
	p := Policy{Name: name, Mean: mean, Endpoints: make([]Endpoint, n)}
	p.Overall = Class{Requests: 100, Good: int(mean), TTFT: Quantile{P95: ttft}, TPOT: Quantile{P95: 0.02}}
	return p
}

// The report answers the question in plain words: what a change does, how many endpoints are enough, which policy, what spoils it.
func TestAnswer(t *testing.T) {
	const chance = "Small differences may be chance: --seeds 5 tells."
	late, lost, full := policy("pointsman", 4, 60, 1), policy("pointsman", 4, 60, 1), policy("4 endpoints, pointsman", 4, 99.5, 1)
	late.Overall.Late, late.Overall.Slow = 30, 10
	lost.Overall.Refused, lost.TooLong = 40, 35
	full.AllFull = 3
	wide := policy("if c", 4, 92, 1)
	wide.Half = 5
	for _, c := range []struct {
		name string
		r    Report
		want []string
	}{
		{"nothing", Report{}, nil},
		{"all good", Report{Lines: []Policy{policy("pointsman", 4, 100, 1)}}, []string{"All 100 requests are good."}},
		{"late", Report{Lines: []Policy{late}}, []string{"60.0 % are good. The main reason why others are not: the first token was late, 30 of 40."}},
		{"too long", Report{Lines: []Policy{lost}}, []string{"60.0 % are good. The main reason why others are not: the prompt does not fit the KV memory, 35 of 40."}},
		{"fleets", Report{Lines: []Policy{policy("6 endpoints, pointsman", 6, 100, 1), full, policy("2 endpoints, pointsman", 2, 80, 1)}},
			[]string{"4 endpoints are enough for 99 %: 99.5 % are good, with 2 it is 80.0 %.", "They have no reserve: all were full for 3.00s.", chance}},
		{"no fleet", Report{Lines: []Policy{policy("2 endpoints, lpwl", 2, 80, 1), policy("1 endpoints, lpwl", 1, 30, 1)}},
			[]string{"None of these is enough for 99 %: 2 endpoints have 80.0 % good.", chance}},
		{"best", Report{Seeds: 5, Lines: []Policy{policy("pointsman", 4, 90, 1), policy("lpwl", 4, 88, 1)}},
			[]string{"pointsman is best: 90.0 % are good, 2.0 points more than with the next, lpwl."}},
		{"alike", Report{Seeds: 5, Lines: []Policy{policy("pointsman", 4, 90, 1), policy("lpwl", 4, 90, 1)}}, []string{"pointsman and lpwl are alike: 90.0 % are good."}},
		{"beaten", Report{Seeds: 5, Lines: []Policy{policy("lpwl", 4, 93, 1), policy("pointsman", 4, 90, 1)}}, []string{"lpwl is best: 93.0 % are good, 3.0 points more than with pointsman."}},
		{"what if", Report{Seeds: 5, Base: "as given", Lines: []Policy{policy("if a", 4, 95, 1), wide, policy("as given", 4, 90, 1), policy("if f", 4, 90, 0.5), policy("if s", 4, 90, 2), policy("if e", 4, 90, 1), policy("if b", 3, 70, 3)}},
			[]string{"if a: better. Goodput 95.0 instead of 90.0 %, first token within 1.00s instead of 1.00s for 95 %, per token 20.0ms instead of 20.0ms.",
				"if c: no worse and no better.", "if f: as many good, faster.", "if s: as many good, slower.", "if e: no worse and no better.", "if b: worse."}},
	} {
		c.r.Finish()
		if !slices.EqualFunc(c.r.Answer, c.want, strings.HasPrefix) {
			t.Errorf("%s: %q, want %q", c.name, c.r.Answer, c.want)
		}
		if page := written(t, c.r.WriteText); c.want != nil && !strings.Contains(page, c.want[0]) {
			t.Errorf("%s: the answer is not in\n%s", c.name, page)
		}
	}
}
