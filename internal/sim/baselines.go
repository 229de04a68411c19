package sim

import "math"

// Baselines returns the published policies that ours is compared with. Each is a pure function over the same reports, books and index;
// P is the uncached tokens booked whose first token was not seen, N the requests in flight, u the tokens to compute.
func Baselines() []Policy {
	return []Policy{
		{Name: "random", Source: "every load balancer", Choose: pickRandom},
		{Name: "round_robin", Source: "every load balancer", Choose: roundRobin},
		{Name: "least_request", Source: "Envoy LEAST_REQUEST over all endpoints", Choose: leastRequest},
		{Name: "power_of_two", Source: "Envoy LEAST_REQUEST, two choices", Choose: powerOfTwo},
		{Name: "prefix_pure", Source: "longest hit, whatever the load", Choose: longestHit},
		{Name: "sglang", Source: "SGLang router 0.3, cache_aware", Choose: sglang},
		{Name: "smg", Source: "sgl-model-gateway 1.13, cache_aware", Choose: smg},
		{Name: "aibrix", Source: "AIBrix, prefix-cache", Choose: aibrix},
		{Name: "dynamo", Source: "NVIDIA Dynamo, KV router", Choose: dynamo, Blocks: true},
		{Name: "llmd_blend", Source: "llm-d, scorers of prefix, queue and KV (legacy)", Choose: llmdBlend},
		{Name: "llmd_sticky", Source: "llm-d, sticky prefix with a time bound", Choose: llmdSticky},
		{Name: "lmetric", Source: "LMetric: (P + u) * N", Choose: lmetric},
		{Name: "lpwl", Source: "least prefill work left: P + u", Choose: lpwl},
	}
}

func (v *View) inFlight(i int) float64 { return float64(v.Snapshot.Endpoints[i].Requests) }

// work is P + u.
func (v *View) work(i int) float64 {
	return float64(v.Snapshot.Endpoints[i].UncachedTokens) + v.New(i)
}

func pickRandom(v *View) int { return v.Lowest(nil, func(int) float64 { return 0 }) }

func roundRobin(v *View) int {
	n := len(v.Snapshot.Endpoints)
	for k := range n {
		if i := int((v.Count + uint64(k)) % uint64(n)); v.Usable(i) {
			return i
		}
	}
	return -1
}

func leastRequest(v *View) int { return v.Lowest(nil, v.inFlight) }

func powerOfTwo(v *View) int {
	a := pickRandom(v)
	b := v.Lowest(func(i int) bool { return i != a }, func(i int) float64 { return float64(mixed(v.Rand, uint64(i)+7) >> 12) })
	if b >= 0 && v.inFlight(b) < v.inFlight(a) {
		return b
	}
	return a
}

func longestHit(v *View) int {
	return v.Lowest(nil, func(i int) float64 { return -v.Hit(i) })
}

// spread returns the fewest, the mean and the most requests in flight of the usable slots, and their standard deviation.
func (v *View) spread() (least, mean, most, sigma float64) {
	least = math.Inf(1)
	n, sum, squares := 0.0, 0.0, 0.0
	for i := range v.Snapshot.Endpoints {
		if !v.Usable(i) {
			continue
		}
		x := v.inFlight(i)
		least, most = min(least, x), max(most, x)
		n, sum, squares = n+1, sum+x, squares+x*x
	}
	if n == 0 {
		return 0, 0, 0, 0
	}
	mean = sum / n
	return least, mean, most, math.Sqrt(max(0, squares/n-mean*mean))
}

func sglang(v *View) int {
	least, _, most, _ := v.spread()
	if most-least > 64 && most > 1.5*least {
		return leastRequest(v)
	}
	if i := longestHit(v); i >= 0 && v.Hit(i) > 0.3*float64(v.Request.PromptTokens) {
		return i
	}
	return v.Lowest(nil, func(i int) float64 { return float64(v.Snapshot.Endpoints[i].HeldTokens) })
}

func smg(v *View) int {
	calm := func(i int) bool {
		e := &v.Snapshot.Endpoints[i]
		return e.Waiting < 8 && e.KVUsage < 0.8
	}
	if v.Lowest(calm, v.inFlight) < 0 {
		calm = nil
	}
	best := v.Lowest(calm, func(i int) float64 { return -v.Hit(i) })
	_, mean, _, _ := v.spread()
	if best >= 0 && v.Hit(best) >= 0.3*float64(v.Request.PromptTokens) {
		if n := v.inFlight(best); n <= mean+min(64, max(4, 2*math.Sqrt(mean))) || n <= 1.5*mean {
			return best
		}
	}
	return v.Lowest(calm, v.inFlight)
}

func aibrix(v *View) int {
	least, mean, most, sigma := v.spread()
	if most-least > 8 {
		return leastRequest(v)
	}
	percent := func(i int) float64 { return math.Floor(100 * v.Hit(i) / float64(v.Request.PromptTokens)) }
	light := func(i int) bool { return v.inFlight(i) <= mean+sigma }
	return v.Lowest(light, func(i int) float64 { return -percent(i)*1e6 + v.inFlight(i) })
}

func dynamo(v *View) int {
	return v.Lowest(nil, func(i int) float64 {
		block := float64(max(1, v.Snapshot.Endpoints[i].BlockSize))
		outputs := float64(v.Snapshot.Endpoints[i].OutputTokens)
		active := float64(v.Unique[i])/bytesPerToken + float64(v.Fresh[i]) + outputs
		return (v.work(i) + active) / block
	})
}

func llmdBlend(v *View) int {
	least, most := math.Inf(1), 0.0
	for i := range v.Snapshot.Endpoints {
		if v.Usable(i) {
			w := float64(v.Snapshot.Endpoints[i].Waiting)
			least, most = min(least, w), max(most, w)
		}
	}
	return v.Lowest(nil, func(i int) float64 {
		e := &v.Snapshot.Endpoints[i]
		queue := 1.0
		if most > least {
			queue = (most - float64(e.Waiting)) / (most - least)
		}
		return -(3*v.Hit(i)/float64(v.Request.PromptTokens) + 2*queue + 2*(1-max(0, e.KVUsage)))
	})
}

func llmdSticky(v *View) int {
	const slack, speed = 18.0, 15928.0 // seconds of TTFT, prefill tokens per second
	warm := func(i int) bool { return v.Hit(i) >= 0.8*float64(v.Request.PromptTokens) }
	cold := func(i int) bool { return !warm(i) }
	w, c := v.Lowest(warm, v.work), v.Lowest(cold, v.work)
	switch {
	case w < 0:
		return c
	case c < 0 || v.work(w)-v.work(c) <= slack*speed:
		return w
	}
	return v.Lowest(nil, v.work)
}

func lmetric(v *View) int {
	return v.Lowest(nil, func(i int) float64 { return v.work(i) * max(v.inFlight(i), 1e-9) })
}

func lpwl(v *View) int { return v.Lowest(nil, v.work) }
