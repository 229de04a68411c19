package acceptance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"pointsman.dev/pointsman/internal/vllmsim"
)

// What the exchange of picks is worth: one process of the gateway, three that exchange their picks, and three that do not, each in front
// of four simulated model servers of their own, with the same requests. POINTSMAN_REPLICAS is how many seconds each run takes,
// POINTSMAN_SEEDS how many runs there are.

// tenants each have a system prompt; all of them together fill three quarters of the servers' KV memory. They are many and much alike, so
// that it matters little which endpoint has the busy ones.
const (
	tenants      = 120
	tenantBytes  = 8_000 // 2,000 tokens
	tenantSkew   = 0.3   // a tenant's share of the requests goes with this power of its rank
	tenantRate   = 40.0  // requests per second
	tenantAnswer = 50    // tokens
	sloTTFT      = time.Second
	sloTPOT      = 100 * time.Millisecond
	window       = 10 * time.Second // of the balance
)

// figures are what one arrangement of gateways came to, after the warm-up.
type figures struct {
	requests, failed, good int
	prompt, cached         int
	windows                map[int]map[string]int // requests by window of arrival and endpoint
	cpu                    time.Duration          // of all gateways
	bytes                  float64                // sent between them
	lag                    float64                // seconds from the oldest pick of a batch until a peer confirmed it, mean
}

func (f *figures) hitRate() float64 { return float64(f.cached) / float64(max(1, f.prompt)) }
func (f *figures) goodput() float64 { return float64(f.good) / float64(max(1, f.requests)) }

// balance is the busiest endpoint's requests of a window over the mean of the four endpoints, mean of the windows. With 100 requests
// each, chance alone makes it some 1.1.
func (f *figures) balance() float64 {
	total := 0.0
	for _, w := range f.windows {
		most, sum := 0, 0
		for _, n := range w {
			most, sum = max(most, n), sum+n
		}
		total += float64(most*fleetSize) / float64(max(1, sum))
	}
	return total / float64(max(1, len(f.windows)))
}

func (f *figures) perRequest(v float64) float64 { return v / float64(max(1, f.requests)) }

func (f *figures) String() string {
	return fmt.Sprintf("%5d requests, %d failed: hit rate %5.1f %%, goodput %5.1f %%, busiest endpoint %.2f of the mean, CPU %.2f ms and %4.0f bytes exchanged per request, picks confirmed after %.0f ms",
		f.requests, f.failed, 100*f.hitRate(), 100*f.goodput(), f.balance(), f.perRequest(f.cpu.Seconds()*1e3), f.perRequest(f.bytes), f.lag*1e3)
}

func (f *figures) add(o *observed, at time.Duration) {
	f.requests++
	if o.err != nil {
		f.failed++
		return
	}
	w := f.windows[int(at/window)]
	if w == nil {
		w = map[string]int{}
		f.windows[int(at/window)] = w
	}
	w[o.endpoint]++
	f.prompt, f.cached = f.prompt+o.prompt, f.cached+o.cached
	if o.ttft <= sloTTFT && o.rest <= sloTPOT*time.Duration(max(1, o.generated-1)) {
		f.good++
	}
}

const fleetSize = 4

// tenantFleet is four servers whose memory holds every tenant once, and not much more.
func tenantFleet(t *testing.T) []string {
	t.Helper()
	_, urls := simFleet(t, fleetSize, vllmsim.Config{Model: []string{"m"}, MaxModelLen: 32768, MaxNumSeqs: 256, NumBlocks: 5001, BlockSize: 16,
		MaxBatchedTokens: 2048, Profile: "qwen3-32b-h100-tp2", Speed: 1, PrefixCaching: true})
	return urls
}

// measure sends the same requests to an arrangement of gateways, each to a random one.
func measure(t *testing.T, all []*program, seed uint64, length, warm time.Duration) *figures {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 1))
	weights := make([]float64, tenants)
	prompts := make([]string, tenants)
	for i := range weights {
		weights[i] = math.Pow(float64(i+1), -tenantSkew)
		if i > 0 {
			weights[i] += weights[i-1]
		}
		prompts[i] = words(i, tenantBytes)
	}
	c := client(t, 2000)
	f := &figures{windows: map[int]map[string]int{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	base := func() (cpu time.Duration, sent float64) {
		for _, p := range all {
			cpu += p.cpu(t)
			if v := gauge(t, p, `pointsman_peer_bytes_total{direction="sent"}`); v > 0 {
				sent += v
			}
		}
		return cpu, sent
	}
	var cpu time.Duration
	var sent float64
	begun, warmed := time.Now(), false
	for at := time.Duration(0); at < length; at += time.Duration(rnd.ExpFloat64() / tenantRate * float64(time.Second)) {
		tenant, _ := slices.BinarySearch(weights, rnd.Float64()*weights[tenants-1])
		to := all[rnd.IntN(3)%len(all)]
		question := words(int(rnd.Uint32()), 400+rnd.IntN(800))
		time.Sleep(time.Until(begun.Add(at)))
		counts := at >= warm
		if counts && !warmed {
			warmed = true
			cpu, sent = base()
		}
		wg.Go(func() {
			o := stream(c, to.api, []message{{"system", prompts[tenant]}, {"user", question}}, tenantAnswer)
			if counts {
				mu.Lock()
				f.add(&o, at)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	cpuNow, sentNow := base()
	f.cpu, f.bytes = cpuNow-cpu, sentNow-sent
	if n := gauge(t, all[0], "pointsman_peer_lag_seconds_count"); n > 0 {
		f.lag = gauge(t, all[0], "pointsman_peer_lag_seconds_sum") / n
	}
	return f
}

// arrangements are what is compared.
var arrangements = [3]struct {
	name     string
	n        int
	exchange bool
}{{"one gateway", 1, false}, {"three, exchanging", 3, true}, {"three, blind", 3, false}}

// TestReplicasRouteAsOne compares them. A short run only looks for what is broken; the figures are judged over several long ones.
func TestReplicasRouteAsOne(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	length, seeds, near := 24*time.Second, 1, 5.0 // a third of a cold start is in it
	if s, err := strconv.Atoi(os.Getenv("POINTSMAN_REPLICAS")); err == nil {
		length, seeds, near = time.Duration(s)*time.Second, 8, 2
	}
	if n, err := strconv.Atoi(os.Getenv("POINTSMAN_SEEDS")); err == nil {
		seeds = n
	}
	bin := filepath.Join(t.TempDir(), "pointsman")
	build(t, bin, "pointsman")
	var runs [3][]*figures
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprintf("seed %d", seed+1), func(t *testing.T) {
			var now [3]*figures
			t.Run("", func(t *testing.T) {
				for i, c := range arrangements {
					t.Run(c.name, func(t *testing.T) {
						t.Parallel()
						now[i] = measure(t, replicas(t, bin, c.n, c.exchange, tenantFleet(t)), seed+1, length, length/3)
					})
				}
			})
			for i, f := range now {
				if f == nil {
					t.FailNow()
				}
				t.Logf("%-18s %v", arrangements[i].name, f)
				runs[i] = append(runs[i], f)
			}
		})
	}
	if len(runs[2]) == seeds {
		judge(t, &runs, near)
	}
}

// judge compares the means of the runs and prints them. Three gateways may be near percent worse than one; only what the spread of the
// runs cannot explain fails.
func judge(t *testing.T, runs *[3][]*figures, near float64) {
	t.Helper()
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "mean of the runs, ± half of the 95 % interval\tone gateway\tthree, exchanging\tthree, blind\texchanging is worse than one by\n")
	row := func(name string, scale float64, worse float64, of func(f *figures) float64) (means [3]float64) {
		fmt.Fprint(w, name)
		for i, list := range runs {
			var half float64
			means[i], half = spread(list, func(k int) float64 { return of(list[k]) * scale })
			fmt.Fprintf(w, "\t%.4g ± %.2g", means[i], half)
		}
		if worse == 0 {
			fmt.Fprint(w, "\t\n")
			return means
		}
		by, half := spread(runs[0], func(k int) float64 { return worse * 100 * (of(runs[1][k]) - of(runs[0][k])) / of(runs[0][k]) })
		verdict := "yes"
		if by > near {
			verdict = "not told apart from it"
		}
		if by-half > near {
			verdict = "NO"
			t.Errorf("%s: three that exchange their picks are %.1f ± %.1f %% worse than one gateway", name, by, half)
		}
		fmt.Fprintf(w, "\t%.1f ± %.1f %%; within %g %%: %s\n", by, half, near, verdict)
		return means
	}
	hits := row("prefix hit rate, %", 100, -1, (*figures).hitRate)
	row("goodput, %", 100, -1, (*figures).goodput)
	if len(runs[0]) == 1 {
		near = 25 // a single run has two spans of 10 s after its warm-up, and one of them alone decides
	}
	row("busiest endpoint of 10 s, of the mean", 1, 1, (*figures).balance)
	row("CPU per request, ms", 1e3, 0, func(f *figures) float64 { return f.perRequest(f.cpu.Seconds()) })
	bytes := row("bytes exchanged per request", 1, 0, func(f *figures) float64 { return f.perRequest(f.bytes) })
	row("a pick is confirmed after, ms", 1e3, 0, func(f *figures) float64 { return f.lag })
	failed := row("failed requests", 1, 0, func(f *figures) float64 { return float64(f.failed) })
	_ = w.Flush()
	t.Logf("%d runs\n%s", len(runs[0]), table.String())
	if failed != [3]float64{} {
		t.Errorf("requests failed: %v per run", failed)
	}
	if hits[1] < hits[2]+10 {
		t.Errorf("the hit rate of three that exchange their picks is %.1f %%, of three blind ones %.1f %%: the exchange is worth nothing here", hits[1], hits[2])
	}
	if bytes[1] > 2*2000 {
		t.Errorf("%.0f bytes were exchanged per request", bytes[1])
	}
}

// spread returns the mean of a figure of some runs and half of its 95 % confidence interval, 0 for a single run.
func spread(runs []*figures, of func(k int) float64) (mean, half float64) {
	student := []float64{0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23}
	n := float64(len(runs))
	for k := range runs {
		mean += of(k) / n
	}
	if n < 2 {
		return mean, 0
	}
	sum := 0.0
	for k := range runs {
		sum += (of(k) - mean) * (of(k) - mean)
	}
	return mean, student[min(len(runs), len(student))-1] * math.Sqrt(sum/(n-1)/n)
}
