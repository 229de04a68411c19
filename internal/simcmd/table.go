package simcmd

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"

	"pointsman.dev/pointsman/internal/command"
	"pointsman.dev/pointsman/internal/sim"
)

// table is goodput by policy and workload.
type table struct {
	Title     string   `json:"title,omitempty"`
	Setting   setting  `json:"setting"`
	Seeds     int      `json:"seeds"`
	First     uint64   `json:"first_seed"`
	Workloads []string `json:"workloads"`
	Lines     []line   `json:"policies"`
}

// line is one policy.
type line struct {
	Name    string  `json:"name"`
	Source  string  `json:"source,omitempty"`
	Cells   []cell  `json:"workloads"`
	Worst   float64 `json:"worst"`
	GeoMean float64 `json:"geometric_mean"`
}

// cell is one policy on one workload: a goodput in percent per seed, and their mean.
type cell struct {
	Goodput     []float64 `json:"goodput"`
	Mean        float64   `json:"mean"`
	Half        float64   `json:"half_width_95"` // of the confidence interval; 0 with one seed
	Preemptions uint64    `json:"preemptions"`
	HitRate     float64   `json:"hit_rate"` // of the last seed: prompt tokens found in a cache, [0,1]
}

func (c *cell) add(r *sim.Result) {
	c.Goodput = append(c.Goodput, r.Overall.Goodput())
	c.Preemptions += r.Preemptions
	c.HitRate = float64(r.Cached) / float64(max(1, r.Prompt))
	c.Mean, c.Half = sim.Interval(c.Goodput)
}

// summed fills in the worst cell and the geometric mean, in which nothing counts as less than a tenth of a percent.
func (l line) summed() line {
	l.Worst = math.Inf(1)
	logs := 0.0
	for _, c := range l.Cells {
		l.Worst = min(l.Worst, c.Mean)
		logs += math.Log(max(c.Mean, 0.1))
	}
	l.GeoMean = math.Exp(logs / float64(max(1, len(l.Cells))))
	return l
}

// best returns the name and the mean of the policy that is best on workload w, own variants aside.
func (t *table) best(w int) (name string, mean float64) {
	for _, l := range t.Lines {
		if !strings.HasPrefix(l.Name, sim.Ours().Name) && l.Cells[w].Mean > mean {
			name, mean = l.Name, l.Cells[w].Mean
		}
	}
	return name, mean
}

// write prints tables in the form that was asked for.
func (o *options) write(w io.Writer, tables ...*table) error {
	if o.json {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		var v any = tables
		if len(tables) == 1 {
			v = tables[0]
		}
		return enc.Encode(v)
	}
	var b strings.Builder
	for i, t := range tables {
		if i > 0 {
			b.WriteString("\n")
		}
		if o.markdown {
			t.write(&b, "| ", " | ", " |", true)
		} else {
			t.write(&b, "", "  ", "", false)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// write prints the table with these column separators; rule puts Markdown's line below the head.
func (t *table) write(b *strings.Builder, left, between, right string, rule bool) {
	if t.Title != "" {
		fmt.Fprintf(b, "%s\n\n", t.Title)
	}
	var rows [][]string
	rows = append(rows, append(append([]string{"goodput %"}, t.Workloads...), "worst", "geo. mean"))
	for _, l := range t.Lines {
		cells := []string{l.Name}
		for _, c := range l.Cells {
			cells = append(cells, c.String())
		}
		rows = append(rows, append(cells, fmt.Sprintf("%.1f", l.Worst), fmt.Sprintf("%.1f", l.GeoMean)))
	}
	if ahead := t.ahead(); ahead != nil {
		rows = append(rows, ahead)
	}
	width := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, c := range r {
			width[i] = max(width[i], len([]rune(c)))
		}
	}
	for i, r := range rows {
		cells := make([]string, len(r))
		for k, c := range r {
			pad := strings.Repeat(" ", width[k]-len([]rune(c)))
			if k == 0 {
				cells[k] = c + pad
			} else {
				cells[k] = pad + c
			}
		}
		b.WriteString(strings.TrimRight(left+strings.Join(cells, between)+right, " ") + "\n")
		if i == 0 && rule {
			b.WriteString("|---|" + strings.Repeat("---:|", len(r)-1) + "\n")
		}
	}
	if !rule {
		fmt.Fprintf(b, "\n%s from %d, %s%s\n", command.Plural(t.Seeds, "seed"), t.First, t.Setting, interval(t.Seeds))
	}
}

// ahead is the last row of a comparison: how far ours is ahead of the best of the others.
func (t *table) ahead() []string {
	if t.Title != "" || len(t.Lines) == 0 || t.Lines[0].Name != sim.Ours().Name {
		return nil
	}
	out := []string{"ahead of the best other"}
	any := false
	for w, c := range t.Lines[0].Cells {
		name, mean := t.best(w)
		any = any || name != ""
		out = append(out, fmt.Sprintf("%+.1f", c.Mean-mean))
	}
	if !any {
		return nil
	}
	return append(out, "", "")
}

// String is the mean and its uncertainty.
func (c cell) String() string {
	if c.Half < 0.05 {
		return fmt.Sprintf("%.1f", c.Mean)
	}
	return fmt.Sprintf("%.1f±%.1f", c.Mean, c.Half)
}

// interval explains the sign that seeds bring.
func interval(seeds int) string {
	if seeds < 3 {
		return ""
	}
	return "; ± is half of the 95 % confidence interval"
}
