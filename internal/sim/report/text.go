package report

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// WriteJSON writes the report as indented JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// WriteText writes the report as tables for a terminal.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	width := 10
	for _, f := range r.Facts {
		width = max(width, len(f.Name))
	}
	for _, f := range r.Facts {
		fmt.Fprintf(&b, "%-*s %s\n", width, f.Name, f.Value)
	}
	for i, s := range r.Answer {
		name := ""
		if i == 0 {
			name = "answer"
		}
		fmt.Fprintf(&b, "%-*s %s\n", width, name, s)
	}
	b.WriteString("\n")
	columns(&b, r.rows())
	b.WriteString("\n")
	columns(&b, r.outcomeRows())
	if rows := r.classRows(); len(rows) > 1 {
		b.WriteString("\n")
		columns(&b, rows)
	}
	if rows := r.reasonRows(); len(rows) > 1 {
		b.WriteString("\n")
		columns(&b, rows)
	}
	for i := range r.Lines {
		if len(r.Lines) > 4 {
			break // one policy against many: who did best, not how
		}
		b.WriteString("\n")
		columns(&b, r.Lines[i].endpointRows())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// rows is the table of policies.
func (r *Report) rows() [][]string {
	rows := [][]string{{"policy", "goodput %", "TTFT p50", "p95", "p99", "TPOT p50", "p95", "E2E p50", "p95", "hits %", "expected", "preempted", "recomputed", "all full"}}
	for i := range r.Lines {
		p := &r.Lines[i]
		o := &p.Overall
		rows = append(rows, []string{p.Name, p.goodput(), text(o.TTFT.P50), text(o.TTFT.P95), text(o.TTFT.P99), text(o.TPOT.P50), text(o.TPOT.P95),
			text(o.E2E.P50), text(o.E2E.P95), percent(p.EngineHits), percent(p.PredictedHits), fmt.Sprint(p.Preemptions), fmt.Sprint(p.Recomputed), text(p.AllFull)})
	}
	return rows
}

// outcomeRows says why requests were not good. Columns in which nothing happened anywhere are left out.
func (r *Report) outcomeRows() [][]string {
	rows := [][]string{{"policy", "requests", "good", "first token late", "tokens slow"}}
	for i := range r.Lines {
		o := &r.Lines[i].Overall
		rows = append(rows, []string{r.Lines[i].Name, fmt.Sprint(o.Requests), fmt.Sprint(o.Good), fmt.Sprint(o.Late), fmt.Sprint(o.Slow)})
	}
	for _, c := range []struct {
		name string
		of   func(*Policy) int
	}{
		{"refused", func(p *Policy) int { return p.Overall.Refused }},
		{"of these too long", func(p *Policy) int { return p.TooLong }},
		{"broke off", func(p *Policy) int { return p.Overall.Failed }},
		{"unfinished", func(p *Policy) int { return p.Overall.Unfinished }},
		{"left in time, not judged", func(p *Policy) int { return p.Overall.Excused }},
	} {
		if !slices.ContainsFunc(r.Lines, func(p Policy) bool { return c.of(&p) > 0 }) {
			continue
		}
		rows[0] = append(rows[0], c.name)
		for i := range r.Lines {
			rows[i+1] = append(rows[i+1], fmt.Sprint(c.of(&r.Lines[i])))
		}
	}
	return rows
}

func (r *Report) classRows() [][]string {
	rows := [][]string{{"policy", "class", "requests", "goodput %", "TTFT p50", "p95", "TPOT p95", "cancelled", "refused", "failed", "unfinished"}}
	for i := range r.Lines {
		p := &r.Lines[i]
		for _, c := range p.Classes {
			rows = append(rows, []string{p.Name, c.Name, fmt.Sprint(c.Requests), fmt.Sprintf("%.1f", c.Goodput), text(c.TTFT.P50), text(c.TTFT.P95), text(c.TPOT.P95),
				fmt.Sprint(c.Cancelled), fmt.Sprint(c.Refused), fmt.Sprint(c.Failed), fmt.Sprint(c.Unfinished)})
		}
	}
	return rows
}

func (r *Report) reasonRows() [][]string {
	rows := [][]string{{"policy", "picks by reason"}}
	for i := range r.Lines {
		var parts []string
		for _, c := range r.Lines[i].Reasons {
			parts = append(parts, fmt.Sprintf("%s %d", c.Name, c.N))
		}
		if parts == nil {
			continue
		}
		rows = append(rows, []string{r.Lines[i].Name, strings.Join(parts, ", ")})
	}
	return rows
}

func (p *Policy) endpointRows() [][]string {
	rows := [][]string{{p.Name, "picks", "busy %", "hits %", "prefilled", "preempted", "most waiting"}}
	for i, e := range p.Endpoints {
		rows = append(rows, []string{fmt.Sprintf("endpoint %d", i), fmt.Sprint(e.Picks), percent(e.Busy), percent(e.HitRate), fmt.Sprint(e.Prefilled),
			fmt.Sprint(e.Preemptions), fmt.Sprint(e.MostWaiting)})
	}
	return rows
}

// goodput is the mean with half the width of its confidence interval.
func (p *Policy) goodput() string {
	if p.Half < 0.05 {
		return fmt.Sprintf("%.1f", p.Mean)
	}
	return fmt.Sprintf("%.1f±%.1f", p.Mean, p.Half)
}

func percent(share float64) string { return fmt.Sprintf("%.1f", 100*share) }

// text is a duration in seconds as people write it.
func text(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d == 0:
		return "0"
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%.1fms", seconds*1e3)
	case d < time.Second:
		return fmt.Sprintf("%.0fms", seconds*1e3)
	case d < 100*time.Second:
		return fmt.Sprintf("%.2fs", seconds)
	}
	return fmt.Sprintf("%.0fs", seconds)
}

// columns writes rows with the first column to the left and numbers to the right.
func columns(b *strings.Builder, rows [][]string) {
	width := make([]int, len(rows[0]))
	left := make([]bool, len(rows[0]))
	for i := range width {
		for k, r := range rows {
			width[i] = max(width[i], len([]rune(r[i])))
			left[i] = left[i] || i == 0 || k > 0 && r[i] != "" && (r[i][0] < '0' || r[i][0] > '9')
		}
	}
	for _, r := range rows {
		line := ""
		for i, c := range r {
			pad := strings.Repeat(" ", width[i]-len([]rune(c)))
			if i > 0 {
				line += "  "
			}
			if left[i] {
				line += c + pad
			} else {
				line += pad + c
			}
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
}
