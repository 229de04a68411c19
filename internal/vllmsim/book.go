package vllmsim

import (
	"net/http"
	"slices"
	"time"

	"pointsman.dev/pointsman/internal/engine"
)

// maxBuckets bounds the finite buckets of a histogram.
const maxBuckets = 24

// histogram is a Prometheus histogram. It is a value: copying it is the snapshot that a page is made of.
type histogram struct {
	bounds []float64 // never changed after construction
	counts [maxBuckets + 1]uint64
	sum    float64
	n      uint64
}

func newHistogram(bounds ...float64) histogram {
	return histogram{bounds: bounds[:min(len(bounds), maxBuckets)]}
}

func (h *histogram) observe(v float64) {
	i, _ := slices.BinarySearch(h.bounds, v)
	h.counts[i]++
	h.sum += v
	h.n++
}

func (h *histogram) seconds(d time.Duration) { h.observe(d.Seconds()) }

// tokenBounds are 1, 2, 5, 10 ... up to the window.
func tokenBounds(window int) []float64 {
	var bounds []float64
	for decade := 1.0; ; decade *= 10 {
		for _, m := range []float64{1, 2, 5} {
			if m*decade > float64(window) {
				return bounds
			}
			bounds = append(bounds, m*decade)
		}
	}
}

// book holds what a metrics page shows beyond the engine's own counters. Server.mu guards it.
type book struct {
	promptTokens, generated, iteration, maxGenerated, paramsN, paramsMax     histogram
	ttft, itl, perToken, e2e, queue, inference, prefill, decode, preemptions histogram
	computed                                                                 histogram
	highRes                                                                  histogram
	handlers                                                                 []handlerBook // by first use
	latencies                                                                []latencyBook
	requests                                                                 []requestBook
	wholePromptPerIteration                                                  bool
}

// handlerBook is one handler's sizes.
type handlerBook struct {
	handler           string
	n                 int
	request, response int64
	created           float64
}

// latencyBook is one handler and method.
type latencyBook struct {
	handler, method string
	h               histogram
	created         float64
}

// requestBook is one handler, method and status class.
type requestBook struct {
	handler, method, status string
	n                       int
	created                 float64
}

func newBook(cfg Config) book {
	tokens := newHistogram(tokenBounds(cfg.MaxModelLen)...)
	perToken := newHistogram(.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
	long := newHistogram(.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
	return book{promptTokens: tokens, generated: tokens, maxGenerated: tokens, paramsMax: tokens, computed: tokens,
		iteration:   newHistogram(1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
		paramsN:     newHistogram(1, 2, 5, 10, 20),
		ttft:        newHistogram(.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
		itl:         perToken,
		perToken:    perToken,
		e2e:         long,
		queue:       long,
		inference:   long,
		prefill:     long,
		decode:      long,
		preemptions: newHistogram(1, 2, 3, 4, 5, 10, 20),
		highRes:     newHistogram(.01, .025, .05, .075, .1, .25, .5, .75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60),

		wholePromptPerIteration: cfg.MetricsStyle == "vllm-0.8",
	}
}

// output books one token of j, and its end.
func (b *book) output(j *job, out *engine.Output, stepStart, now time.Time) {
	if out.Index >= 0 {
		if out.First {
			j.scheduled, j.first = stepStart, now
			b.ttft.seconds(now.Sub(j.call.arrived))
		} else {
			b.itl.seconds(now.Sub(j.last))
		}
		j.last = now
		j.emitted++
	}
	if out.Finished == engine.None {
		return
	}
	prompt := j.seq.PromptLen()
	b.promptTokens.observe(float64(prompt))
	b.generated.observe(float64(j.emitted))
	b.maxGenerated.observe(float64(j.emitted))
	b.paramsN.observe(float64(j.call.n))
	b.paramsMax.observe(float64(j.seq.MaxTokens))
	b.e2e.seconds(now.Sub(j.call.arrived))
	b.preemptions.observe(0)
	b.computed.observe(float64(prompt - out.Cached))
	if j.emitted == 0 {
		return
	}
	b.queue.seconds(j.queued())
	b.inference.seconds(j.last.Sub(j.scheduled))
	b.prefill.seconds(j.first.Sub(j.scheduled))
	b.decode.seconds(j.last.Sub(j.first))
	if j.emitted > 1 {
		b.perToken.seconds(j.last.Sub(j.first) / time.Duration(j.emitted-1))
	}
}

// queued is the time before the step that gave the first token: the model of the engine does not say when a chunked prefill
// began, so the chunks before count as queue.
func (j *job) queued() time.Duration { return max(0, j.scheduled.Sub(j.call.arrived)) }

// bookHTTP books one answer in the families of the web framework.
func (s *Server) bookHTTP(handler string, x *exchange) {
	took := time.Since(x.start)
	class := "5xx"
	if x.status > 0 {
		class = string(rune('0'+x.status/100)) + "xx"
	}
	created := float64(time.Now().UnixNano()) / 1e9
	s.mu.Lock()
	defer s.mu.Unlock()
	b := &s.book
	b.highRes.seconds(took)
	i := slices.IndexFunc(b.requests, func(r requestBook) bool { return r.handler == handler && r.method == x.r.Method && r.status == class })
	if i < 0 {
		i = len(b.requests)
		b.requests = append(b.requests, requestBook{handler: handler, method: x.r.Method, status: class, created: created})
	}
	b.requests[i].n++
	i = slices.IndexFunc(b.handlers, func(h handlerBook) bool { return h.handler == handler })
	if i < 0 {
		i = len(b.handlers)
		b.handlers = append(b.handlers, handlerBook{handler: handler, created: created})
	}
	h := &b.handlers[i]
	h.n++
	h.request += max(0, x.r.ContentLength)
	h.response += int64(x.length)
	i = slices.IndexFunc(b.latencies, func(l latencyBook) bool { return l.handler == handler && l.method == x.r.Method })
	if i < 0 {
		i = len(b.latencies)
		b.latencies = append(b.latencies, latencyBook{handler: handler, method: x.r.Method, h: newHistogram(.1, .5, 1), created: created})
	}
	b.latencies[i].h.seconds(took)
}

// copy is a snapshot for a page.
func (b *book) copy() book {
	c := *b
	c.handlers, c.latencies, c.requests = slices.Clone(b.handlers), slices.Clone(b.latencies), slices.Clone(b.requests)
	return c
}

// metrics answers GET /metrics.
func (x *exchange) metrics() {
	s := x.s
	if f, ok := s.active(FaultSlowMetrics); ok && !wait(x, f.Delay) {
		return
	}
	if _, ok := s.active(FaultFailMetrics); ok {
		x.json(http.StatusInternalServerError, []byte(`{"detail":"Internal Server Error"}`))
		return
	}
	page := s.metricsBody()
	if _, ok := s.active(FaultFreezeMetrics); ok {
		s.mu.Lock()
		if s.frozen == nil {
			s.frozen = page
		}
		page = s.frozen
		s.mu.Unlock()
	}
	contentType := "text/plain; version=1.0.0; charset=utf-8"
	if s.old() {
		contentType = "text/plain; version=0.0.4; charset=utf-8"
	}
	x.raw(http.StatusOK, contentType, page, true, true)
}

func (s *Server) metricsBody() []byte {
	s.mu.Lock()
	r := reading{engine: s.eng.Stats(), book: s.book.copy(), asleep: s.asleep, blocks: s.cfg.NumBlocks}
	if r.asleep > 0 {
		r.engine.Running, r.engine.Waiting, r.engine.Capacity, r.engine.Deferred = 0, 0, 0, 0
	}
	s.mu.Unlock()
	return s.page.render(&r)
}
