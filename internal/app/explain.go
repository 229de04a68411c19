package app

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"pointsman.dev/pointsman/internal/command"
	"pointsman.dev/pointsman/internal/pool"
)

const (
	explainTimeout = 10 * time.Second
	explainBytes   = 16 << 20 // an answer about 4,096 endpoints is some 8 MB
	explainShown   = 8        // endpoints shown without --all
)

// Explain asks a running gateway why a recent request went to its endpoint and prints every gate and every cost term.
// It returns 1 when the gateway does not answer or does not remember the request, and 2 when it was called wrongly.
func Explain(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("pointsman explain", flag.ContinueOnError)
	fs.SetOutput(stderr)
	adminURL := fs.String("admin", "http://127.0.0.1:9090", "the gateway's admin `URL`")
	all := fs.Bool("all", false, "print every endpoint, not the best "+strconv.Itoa(explainShown))
	raw := fs.Bool("json", false, "print the answer as JSON")
	fs.Usage = func() { explainUsage(fs) }
	if code, done := command.Parse(fs, args, stdout); done {
		return code
	}
	if fs.NArg() > 1 {
		fmt.Fprintf(stderr, "pointsman explain: one request id at most, but there are %d\n", fs.NArg())
		return 2
	}
	body, err := askExplain(ctx, *adminURL, fs.Arg(0))
	if err != nil {
		fmt.Fprintf(stderr, "pointsman explain: %v\n", err)
		return 1
	}
	if *raw {
		return writeOut(stdout, stderr, body)
	}
	var x explanation
	if err := json.Unmarshal(body, &x); err != nil {
		fmt.Fprintf(stderr, "pointsman explain: reading the answer of %s: %v\n", *adminURL, err)
		return 1
	}
	return writeOut(stdout, stderr, []byte(explainAll(&x, *all)))
}

func writeOut(stdout, stderr io.Writer, text []byte) int {
	if _, err := stdout.Write(text); err != nil {
		fmt.Fprintf(stderr, "pointsman explain: writing: %v\n", err)
		return 1
	}
	return 0
}

func explainUsage(fs *flag.FlagSet) {
	fmt.Fprint(fs.Output(), `Usage: pointsman explain [--admin URL] [--all] [--json] [REQUEST_ID]

Says why a request went to its endpoint, and to each one before it, in order. Without an id: the latest request. The id is in the answer's header
x-pointsman-request-id and in the access log. The gateway remembers the last few thousand picks.

Flags:
`)
	fs.PrintDefaults()
}

// askExplain fetches the explanation as JSON.
func askExplain(ctx context.Context, base, id string) ([]byte, error) {
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("reading --admin %q: not a URL like http://127.0.0.1:9090", base)
	}
	u = u.JoinPath("api", "explain")
	u.RawQuery = url.Values{"id": {id}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", base, err)
	}
	res, err := (&http.Client{Timeout: explainTimeout}).Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, fmt.Errorf("asking %s: %w (is the gateway running, and is --admin its admin address?)", base, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, explainBytes))
	if err != nil {
		return nil, fmt.Errorf("reading the answer of %s: %w", base, err)
	}
	if res.StatusCode == http.StatusOK {
		return body, nil
	}
	var refused struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(body, &refused) != nil || refused.Error == "" {
		return nil, fmt.Errorf("asking %s: status %d", base, res.StatusCode)
	}
	if id != "" {
		return nil, fmt.Errorf("explaining %s: %s", id, refused.Error)
	}
	return nil, fmt.Errorf("explaining the latest request: %s", refused.Error)
}

// explainAll renders every pick of a request, in their order.
func explainAll(x *explanation, all bool) string {
	var b strings.Builder
	n := len(x.Earlier) + 1
	for i := range x.Earlier {
		fmt.Fprintf(&b, "Pick %d of %d. ", i+1, n)
		explainPick(&b, &x.Earlier[i], all)
		b.WriteString("\n")
	}
	if n > 1 {
		fmt.Fprintf(&b, "Pick %d of %d. ", n, n)
	}
	explainPick(&b, &x.Explanation, all)
	if x.Others > 0 {
		fmt.Fprintf(&b, "\nRecent requests before it that had the same id: %d. This is the latest; without an id of its own each gets one that nobody else has.\n", x.Others)
	}
	b.WriteString("\n" + learnt(&x.Explanation) + termWords(x.Policy))
	return b.String()
}

// explainPick renders one pick. The terms of an endpoint add up to its cost, digit for digit.
func explainPick(b *strings.Builder, x *pool.Explanation, all bool) {
	fmt.Fprintf(b, "Request %s, %s ago: %s prompt tokens", orWord(x.ID, "without an id"), ago(x.AgeSeconds), grouped(x.Prompt))
	if x.Model != "" {
		fmt.Fprintf(b, " for model %s", x.Model)
	}
	fmt.Fprintf(b, ", pool %s, policy %s.\n%s\n", x.Pool, x.Policy, why(x))
	if x.Queued > 0 {
		fmt.Fprintf(b, "It had waited %s in the gateway for an endpoint.\n", ago(x.Queued))
	}
	if x.Ended != "" {
		fmt.Fprintf(b, "What became of it there: %s.\n", x.Ended)
	}

	list := slices.Clone(x.Candidates)
	slices.SortStableFunc(list, byMerit)
	shown := len(list)
	if !all {
		shown = min(shown, explainShown)
	}
	for i := range list[:shown] {
		explainEndpoint(b, x, &list[i])
	}
	if rest := len(list) - shown; rest > 0 {
		fmt.Fprintf(b, "\n%d more endpoints: --all shows them.\n", rest)
	}
}

// byMerit puts the chosen endpoint first, then those that were compared, by cost, then the rest.
func byMerit(a, b pool.Candidate) int {
	rank := func(c *pool.Candidate) int {
		switch {
		case c.Chosen:
			return 0
		case c.Skipped == "":
			return 1
		case c.Skipped == "full":
			return 2
		}
		return 3
	}
	if d := rank(&a) - rank(&b); d != 0 {
		return d
	}
	switch {
	case a.Cost < b.Cost:
		return -1
	case a.Cost > b.Cost:
		return 1
	}
	return 0
}

// verdictOf says in a word what became of the endpoint.
func verdictOf(c *pool.Candidate) (mark, verdict string) {
	switch {
	case c.Chosen:
		return ">", "chosen, "
	case c.Skipped == "" && c.Full && c.Tied:
		return " ", "full, as good, "
	case c.Skipped == "full" || c.Skipped == "" && c.Full:
		return " ", "full, "
	case c.Skipped == "health" && c.Paused:
		return " ", "spared (it asked for a pause, or is new and has enough to do), "
	case c.Skipped == "health":
		return " ", "not usable now, "
	case c.Skipped == "excluded":
		return " ", "tried before, "
	case c.Tied:
		return " ", "as good, "
	}
	return " ", ""
}

// explainEndpoint prints one endpoint: gates on the left, cost terms on the right.
func explainEndpoint(b *strings.Builder, x *pool.Explanation, c *pool.Candidate) {
	mark, verdict := verdictOf(c)
	fmt.Fprintf(b, "\n%s %s  %sholds %s of %s prompt tokens%s\n", mark, c.Endpoint, verdict, grouped(c.Hit), grouped(x.Prompt), elsewhere(c))
	if c.Skipped == "health" && !c.Chosen {
		return // its terms hold a penalty that means nothing but this
	}
	unit, scale := "ms", 1e3
	if x.Policy == "least_request" {
		unit, scale = "requests", 1
	}
	left := []string{fmt.Sprintf("%-14s %9s %9s  %-11s", "gate", "value", "full at", "")}
	for i := range c.Gates {
		g := &c.Gates[i]
		left = append(left, fmt.Sprintf("%-14s %9s %9s  %-11s", g.Name, gateNumber(g.Value), gateNumber(g.Threshold), gateWord(g)))
	}
	right := []string{fmt.Sprintf("%-8s %11s", "term", unit)}
	total := 0.0
	for _, t := range c.Terms {
		v := math.Round(t.Seconds*scale*1e3) / 1e3
		total += v
		right = append(right, fmt.Sprintf("%-8s %11.3f", t.Name, v+0)) // +0: no negative zero
	}
	right = append(right, fmt.Sprintf("%-8s %11.3f", "cost", total+0))
	for i := range max(len(left), len(right)) {
		l, r := "", ""
		if i < len(left) {
			l = left[i]
		}
		if i < len(right) {
			r = right[i]
		}
		b.WriteString(strings.TrimRight(fmt.Sprintf("    %-47s   %s", l, r), " ") + "\n")
	}
}

// elsewhere says whose requests are at the endpoint, where not all are those of this gateway.
func elsewhere(c *pool.Candidate) string {
	if c.Peers == 0 && c.Foreign == 0 {
		return ""
	}
	return fmt.Sprintf(", has %s from here, %s from peers, %s foreign", grouped(c.InFlight), grouped(c.Peers), grouped(c.Foreign))
}

func gateWord(g *pool.Gate) string {
	switch {
	case !g.Applies && g.Value < 0:
		return "unknown"
	case !g.Applies:
		return "not applied"
	case g.Passed:
		return "pass"
	}
	return "FULL"
}

// gateNumber prints counts without and shares with decimals; -1 is unknown.
func gateNumber(v float64) string {
	switch {
	case v < 0:
		return "-"
	case v == math.Trunc(v):
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

// why says in a sentence what decided.
func why(x *pool.Explanation) string {
	chosen, next, tied := rivals(x)
	if chosen == nil {
		return "No endpoint could be picked."
	}
	margin := ""
	if next != nil {
		margin = fmt.Sprintf("%s less than %s, the next", costText(x, next.Cost-chosen.Cost), next.Endpoint)
	}
	switch x.Reason {
	case "only_one":
		if n := tried(x); n > 0 {
			return fmt.Sprintf("Picked %s: it was the only endpoint left, after attempts at %d that failed.", chosen.Endpoint, n)
		}
		return fmt.Sprintf("Picked %s: it was the only endpoint that could be picked.", chosen.Endpoint)
	case "all_full":
		return fmt.Sprintf("Picked %s: it is full, as every usable endpoint is, and %s.", chosen.Endpoint, whyOfFull(x, chosen, next, tied))
	case "prefix":
		s := fmt.Sprintf("Picked %s: it holds %s of the %s prompt tokens", chosen.Endpoint, grouped(chosen.Hit), grouped(x.Prompt))
		if next != nil && next.Cost > chosen.Cost {
			return s + " and costs " + margin + "."
		}
		return s + ", and no other costs clearly less."
	}
	switch {
	case tied > 1:
		return fmt.Sprintf("Picked %s: %d endpoints cost about the same, and this one had the fewest requests, the longest hit, or luck.", chosen.Endpoint, tied)
	case next != nil && next.Cost >= chosen.Cost:
		return fmt.Sprintf("Picked %s: by its load it costs %s.", chosen.Endpoint, margin)
	}
	return fmt.Sprintf("Picked %s: no other endpoint was open to it at a lower cost.", chosen.Endpoint)
}

// whyOfFull says what decided between full endpoints. One that costs more than another and is not its equal was picked for its queue:
// when_full: requests.
func whyOfFull(x *pool.Explanation, chosen, next *pool.Candidate, tied int) string {
	switch {
	case tied > 1:
		return fmt.Sprintf("of the %d that cost about the same it had the fewest requests, the longest hit, or luck", tied)
	case next != nil && next.Cost < chosen.Cost:
		return "has the shortest queue"
	}
	return "costs least of all, " + costText(x, chosen.Cost)
}

// tried counts the endpoints at which the request had failed before.
func tried(x *pool.Explanation) (n int) {
	for i := range x.Candidates {
		if x.Candidates[i].Skipped == "excluded" {
			n++
		}
	}
	return n
}

// rivals finds the chosen endpoint, the cheapest other one that it was compared with, and the number of equals.
func rivals(x *pool.Explanation) (chosen, next *pool.Candidate, tied int) {
	for i := range x.Candidates {
		c := &x.Candidates[i]
		if c.Tied {
			tied++
		}
		switch {
		case c.Chosen:
			chosen = c
		case c.Skipped == "" && (next == nil || c.Cost < next.Cost):
			next = c
		}
	}
	return chosen, next, tied
}

func costText(x *pool.Explanation, v float64) string {
	if x.Policy == "least_request" {
		return strconv.FormatFloat(v, 'f', 1, 64) + " requests"
	}
	return strconv.FormatFloat(v*1e3, 'f', 1, 64) + " ms"
}

// learnt says what the pick took the engines to be.
func learnt(x *pool.Explanation) string {
	s := &x.Steps
	if x.Policy == "least_request" || s.Scale == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Learnt of the pool: first tokens take %s times as long as the model of an engine step says, waits for a free place included. So a\n"+
		"step counts %s ms, %s ms more per request that decodes and %s per 1,000 tokens of their contexts, and %s ms per 1,000 tokens\n"+
		"of a prompt; an answer has %.0f tokens.\n",
		three(s.Scale), three(s.Step*1e3), three(s.Decoding*1e3), three(s.Context*1e6), three(s.Prefill*1e6), s.MeanOutput)
	for i := range x.Candidates {
		if c := &x.Candidates[i]; c.Slowness > 0 && math.Abs(c.Slowness-1) >= 0.05 {
			fmt.Fprintf(&b, "%s takes %.2f times as long as its pool.\n", c.Endpoint, c.Slowness)
		}
	}
	return b.String() + "\n"
}

func termWords(policy string) string {
	if policy == "least_request" {
		return "Terms: requests in flight there, this request, a penalty while the endpoint asked for a pause.\n" +
			lowestWins
	}
	return `Terms, all in time: wait for what is booked there, work to prefill what is not cached, busy: the price of work while the
pool is loaded, stall of those before it, step: slower steps for this answer, penalty while the endpoint asked for a
pause, return: credit for coming back to one's endpoint.
` + lowestWins
}

const lowestWins = `The lowest cost wins, without the full endpoints while they are few. Near-equals: the fewest requests, the longest hit, chance.
`

func orWord(s, word string) string {
	if s == "" {
		return word
	}
	return s
}

// ago prints an age with a unit that fits.
func ago(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(100 * time.Millisecond).String()
}

// three prints v with three digits that count, and never as 1.34e+03.
func three(v float64) string {
	if math.Abs(v) >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// grouped prints 5120 as 5,120.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
