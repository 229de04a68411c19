package simcmd

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"pointsman.dev/pointsman/internal/sim"
)

// outages reads --down: ENDPOINT:FROM-TO, endpoints counted from 0, several separated by commas; without TO the endpoint stays down. The
// endpoints are below n.
func outages(text string, n int) (map[int][]sim.Outage, error) {
	out := map[int][]sim.Outage{}
	for word := range strings.SplitSeq(text, ",") {
		if word == "" {
			continue
		}
		bad := fmt.Errorf("--down %q: want ENDPOINT:FROM-TO with an endpoint of 0 to %d, as in 0:30s-90s; without TO it stays down", word, n-1)
		number, span, ok := strings.Cut(word, ":")
		i, err := strconv.Atoi(number)
		if !ok || err != nil || i < 0 || i >= n {
			return nil, bad
		}
		from, to, ends := strings.Cut(span, "-")
		var o sim.Outage
		if o.From, err = time.ParseDuration(from); err != nil || o.From < 0 {
			return nil, bad
		}
		if ends {
			if o.To, err = time.ParseDuration(to); err != nil || o.To <= o.From {
				return nil, bad
			}
		}
		out[i] = append(out[i], o)
	}
	return out, nil
}

// takeDown gives endpoints the outages of --down, which was checked before.
func (w *what) takeDown(endpoints []sim.Endpoint) {
	down, _ := outages(w.down, len(endpoints))
	for i, o := range down {
		endpoints[i].Down = o
	}
}
