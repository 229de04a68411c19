package vllmsim

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"pointsman.dev/pointsman/internal/engine"
)

// The routes of the development mode change the engine while requests are open.

func (x *exchange) sleep() {
	s, level := x.s, 1
	if v, err := strconv.Atoi(x.r.URL.Query().Get("level")); err == nil {
		level = v
	}
	s.mu.Lock()
	s.asleep = level
	s.eng.Sleep()
	s.kick()
	s.mu.Unlock()
	x.json(http.StatusOK, []byte(`{"status":"sleeping","level":`+strconv.Itoa(level)+`}`))
}

func (x *exchange) wakeUp() {
	s := x.s
	s.mu.Lock()
	s.asleep = 0
	s.eng.Resume()
	s.kick()
	s.mu.Unlock()
	x.json(http.StatusOK, []byte(`{"status":"awake","tags":null}`))
}

func (x *exchange) isSleeping() {
	x.s.mu.Lock()
	asleep := x.s.asleep > 0
	x.s.mu.Unlock()
	x.json(http.StatusOK, []byte(`{"is_sleeping":`+strconv.FormatBool(asleep)+`}`))
}

// pause answers when the pause has taken effect: with mode=wait after the last running request.
func (x *exchange) pause() {
	s := x.s
	mode := map[string]engine.PauseMode{"keep": engine.PauseKeep, "wait": engine.PauseWait}
	m, ok := mode[x.r.URL.Query().Get("mode")]
	if !ok {
		m = engine.PauseAbort
	}
	s.mu.Lock()
	s.paused = true
	s.eng.Pause(m)
	s.kick()
	for !s.eng.Paused() && s.paused && !s.dead && !s.halted {
		s.pausing.Wait()
	}
	s.mu.Unlock()
	x.json(http.StatusOK, []byte(`{"status":"paused"}`))
}

func (x *exchange) resume() {
	s := x.s
	s.mu.Lock()
	s.paused = false
	s.eng.Resume()
	s.kick()
	s.pausing.Broadcast()
	s.mu.Unlock()
	x.json(http.StatusOK, []byte(`{"status":"resumed"}`))
}

func (x *exchange) isPaused() {
	x.s.mu.Lock()
	paused := x.s.paused
	x.s.mu.Unlock()
	x.json(http.StatusOK, []byte(`{"is_paused":`+strconv.FormatBool(paused)+`}`))
}

func (x *exchange) resetPrefixCache() {
	x.s.mu.Lock()
	x.s.eng.ResetPrefixCache()
	x.s.mu.Unlock()
	x.empty(http.StatusOK)
}

// abortRequests ends requests by their engine id, all of them without a list. Their answers end with finish_reason abort, and
// no counter moves.
func (x *exchange) abortRequests() {
	body, ok := x.readBody()
	if !ok {
		panic(http.ErrAbortHandler)
	}
	var req struct {
		RequestIDs []string `json:"request_ids"`
	}
	_ = json.Unmarshal(body, &req) // anything else aborts all, as an empty object does
	s, aborted := x.s, 0
	s.mu.Lock()
	for c := range s.calls {
		for i, j := range c.jobs {
			id := c.id + "-" + strconv.Itoa(i/c.n)
			if req.RequestIDs != nil && !slices.Contains(req.RequestIDs, id) && !slices.Contains(req.RequestIDs, c.id) {
				continue
			}
			if s.eng.Abort(&j.seq) {
				aborted++
				s.push(j, "abort")
			}
		}
	}
	s.kick()
	s.mu.Unlock()
	x.json(http.StatusOK, []byte(`{"status":"aborted","aborted":`+strconv.Itoa(aborted)+`}`))
}
