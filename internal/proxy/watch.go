package proxy

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/telemetry"
)

const (
	// watchEvery is how often a lasting request is looked at for what no timer tells: its endpoint went away, or the
	// gateway ends.
	watchEvery = time.Second

	// goneSilence is how long the answer of an endpoint that went away may be silent. It may still hold bytes that
	// are under way.
	goneSilence = time.Second

	// lastWords is how long writing to the client may take once an exchange has been cut.
	lastWords = 5 * time.Second
)

// watch owns the clock of one exchange: one timer for the limits, the silence of an endpoint that went away, the gateway's
// own end, and the comments that keep a silent stream's connection alive. Most requests end before it ever fires.
type watch struct {
	x     *exchange
	timer *time.Timer

	// turn is held by whoever may write to the client: the goroutine that copies the answer, save while it waits for the
	// endpoint's next bytes, or tick. It is locked from the head of an answer on.
	turn sync.Mutex

	mu       sync.Mutex // guards the fields below
	ended    bool
	deadline bool            // deadlines of the client's connection were changed
	gone     <-chan struct{} // of the booking
	limits   Limits          // of the model
	kept     time.Duration   // when the head came, or the last keep-alive went; 0: there is no stream to keep alive

	cut       atomic.Pointer[cutCause] // set once: why the exchange was ended
	last      atomicTime               // last byte of the answer; 0: none yet
	uploading atomic.Bool              // the request's body is being read
	streaming atomic.Bool              // the request asked for a stream: first_byte and idle hold
}

// atomicTime is a time since the exchange's start that two goroutines share.
type atomicTime struct{ ns atomic.Int64 }

func (t *atomicTime) set(d time.Duration) { t.ns.Store(int64(d)) }
func (t *atomicTime) get() time.Duration  { return time.Duration(t.ns.Load()) }

// cutCause says why the watch ended an exchange.
type cutCause struct {
	reason  string // stable machine word
	outcome string // of telemetry
	code    string // of the error event
	status  int    // for the client; 0: its own doing
	message string // for the client
}

// Error implements error.
func (c *cutCause) Error() string { return c.message }

// as returns what the client is told.
func (c *cutCause) as() *llmapi.Error {
	return &llmapi.Error{Status: c.status, Reason: c.reason, Code: c.code, Message: c.message}
}

func (w *watch) begin(x *exchange) {
	w.x = x
	w.mu.Lock() // a very short limit may fire at once
	defer w.mu.Unlock()
	w.limits = x.p.cfg.Limits
	w.timer = time.AfterFunc(min(watchEvery, w.limits.Limit), w.tick)
}

// limit sets other limits than the gateway's: the model is known.
func (w *watch) limit(l Limits) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limits = l
	if !w.ended && l.Limit < watchEvery {
		w.timer.Reset(max(0, l.Limit-w.x.Now()))
	}
}

// end stops the watch for good. When it returns no tick runs or will run.
func (w *watch) end() {
	w.timer.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	if w.deadline { // the connection may serve another request
		rc := http.NewResponseController(w.x.w)
		_ = rc.SetWriteDeadline(time.Time{})
		_ = rc.SetReadDeadline(time.Time{})
	}
}

// tick looks at the exchange and sets the timer for the next look.
func (w *watch) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	now := w.x.Now()
	cause, next := w.judge(now)
	if cause == nil {
		next, cause = w.keepAlive(now, next)
	}
	if cause == nil {
		w.timer.Reset(next)
		return
	}
	w.cut.Store(cause)
	rc := http.NewResponseController(w.x.w)
	w.deadline = true
	_ = rc.SetWriteDeadline(time.Now().Add(lastWords))
	if w.uploading.Load() {
		_ = rc.SetReadDeadline(time.Now())
	}
	w.x.cancel(cause)
}

// judge returns why the exchange must end at now, or when to look again.
func (w *watch) judge(now time.Duration) (*cutCause, time.Duration) {
	l := &w.limits
	if now >= l.Limit {
		c := w.timeout("limit", l.Limit, "total_timeout", "the request took longer than the gateway's time limit")
		if w.uploading.Load() {
			c.status = http.StatusRequestTimeout
		}
		return c, 0
	}
	next := min(watchEvery, l.Limit-now)
	last := w.last.get()
	if w.x.p.cutting.Load() {
		return shutdown(), 0
	}
	if now-last >= goneSilence {
		select {
		case <-w.gone:
			return lostEndpoint(last), 0
		default:
		}
	}
	if !w.streaming.Load() {
		return nil, next
	}
	if last == 0 {
		if now >= l.FirstByte {
			return w.timeout("first_byte", l.FirstByte, "first_byte_timeout", "the model server sent nothing within the gateway's limit for the first byte"), 0
		}
		return nil, min(next, l.FirstByte-now)
	}
	if silent := now - last; silent >= l.Idle {
		if !w.turn.TryLock() { // the silence is the client's: it does not take what is there
			return &cutCause{reason: llmapi.ReasonTimeout, outcome: telemetry.OutcomeClientCancelled, code: "client_stalled",
				message: fmt.Sprintf("the client read nothing for %v (%s)", l.Idle, w.key("idle", l.Idle))}, 0
		}
		w.turn.Unlock()
		return w.timeout("idle", l.Idle, "stream_idle_timeout", "the model server's stream was silent for longer than the gateway's limit"), 0
	}
	return nil, min(next, l.Idle-(now-last))
}

// shutdown is the end of a drain.
func shutdown() *cutCause {
	return &cutCause{reason: llmapi.ReasonShutdown, outcome: telemetry.OutcomeCut, code: "gateway_shutdown", status: http.StatusServiceUnavailable,
		message: "the gateway is shutting down and its drain time is over"}
}

// timeout names the timer that fired, its value, and the key that changes it.
func (w *watch) timeout(key string, value time.Duration, code, what string) *cutCause {
	return &cutCause{reason: llmapi.ReasonTimeout, outcome: telemetry.OutcomeTimeout, code: code, status: http.StatusGatewayTimeout,
		message: fmt.Sprintf("%s: %v (%s)", what, value, w.key(key, value))}
}

// key says where a limit is set. One that is as long as the whole follows from it, and one that is the gateway's too is the
// gateway's: a model has only what differs.
func (w *watch) key(name string, value time.Duration) string {
	if value == w.limits.Limit {
		name = "limit"
	}
	all := &w.x.p.cfg.Limits
	if value != map[string]time.Duration{"limit": all.Limit, "first_byte": all.FirstByte, "idle": all.Idle}[name] {
		name += " of the model"
	}
	return name + " in the configuration of pointsman"
}

// follow watches the endpoint whose booking gives gone.
func (w *watch) follow(gone <-chan struct{}) {
	w.mu.Lock()
	w.gone = gone
	w.mu.Unlock()
}

func lostEndpoint(last time.Duration) *cutCause {
	c := &cutCause{reason: llmapi.ReasonUpstreamError, outcome: telemetry.OutcomeUpstreamError, code: "upstream_gone", status: http.StatusBadGateway,
		message: "the model server went away while it worked on the request; the request may have been processed and was not sent again"}
	if last > 0 {
		c.outcome = telemetry.OutcomeCut
	}
	return c
}
