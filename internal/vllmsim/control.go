package vllmsim

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"
)

// FaultHeader is the request header that makes a fault happen to that request; its value is what ParseFault reads.
const FaultHeader = "X-Vllmsim-Fault"

// armedFault is a fault that waits on the server.
type armedFault struct {
	Fault
	until time.Time // zero = no end
	left  int       // requests that it still hits; 0 with Count 0 = any number
}

// control answers the paths under /vllmsim/, which no real server has.
func (x *exchange) control() {
	s := x.s
	switch x.r.Method + " " + x.r.URL.Path {
	case "GET /vllmsim/stats":
		b, err := json.MarshalIndent(s.Stats(), "", "  ")
		if err != nil {
			panic(err) // numbers and strings always marshal
		}
		x.json(http.StatusOK, append(b, '\n'))
	case "POST /vllmsim/fault":
		body, _ := io.ReadAll(x.r.Body)
		if err := s.faultRequest(body); err != nil {
			x.json(http.StatusBadRequest, append(appendJSONString([]byte(`{"error":`), err.Error()), "}\n"...))
			return
		}
		x.json(http.StatusOK, []byte("{}\n"))
	case "DELETE /vllmsim/fault":
		s.ClearFaults()
		x.json(http.StatusOK, []byte("{}\n"))
	default:
		x.json(http.StatusNotFound, []byte(`{"error":"known: GET /vllmsim/stats, POST and DELETE /vllmsim/fault"}`+"\n"))
	}
}

// faultRequest reads {"fault":"reset;after=3","for":"10s","count":3}; the fault "none" clears all.
func (s *Server) faultRequest(body []byte) error {
	var req struct {
		Fault string `json:"fault"`
		For   string `json:"for"`
		Count int    `json:"count"`
	}
	if err := json.Unmarshal(body, &req); err != nil {
		return fmt.Errorf("parsing fault request: %w", err)
	}
	if req.Fault == "none" {
		s.ClearFaults()
		return nil
	}
	f, err := ParseFault(req.Fault)
	if err != nil {
		return err
	}
	if req.For != "" {
		if f.For, err = time.ParseDuration(req.For); err != nil {
			return fmt.Errorf("parsing fault request: for: %w", err)
		}
	}
	if req.Count != 0 {
		f.Count = req.Count
	}
	s.SetFault(f)
	return nil
}

// SetFault arms f for the server, beside other kinds of faults and instead of an older one of the same kind.
func (s *Server) SetFault(f Fault) {
	switch f.Kind {
	case FaultEngineDead:
		s.KillEngine()
		return
	case FaultTerminate:
		s.Terminate()
		return
	case "":
		return
	}
	a := &armedFault{Fault: f, left: f.Count}
	if f.For > 0 {
		a.until = time.Now().Add(f.For)
		time.AfterFunc(f.For, func() { s.disarm(f.Kind, a) })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed[f.Kind] = a
	s.applyFaults()
}

// disarm removes a, unless another one took its place.
func (s *Server) disarm(kind string, a *armedFault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.armed[kind] == a {
		delete(s.armed, kind)
		s.applyFaults()
	}
}

// ClearFaults disarms every fault that has a way back.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.armed)
	s.applyFaults()
}

// applyFaults makes the server's state follow what is armed. s.mu is held.
func (s *Server) applyFaults() {
	s.slowdown = 1
	if a := s.armed[FaultSlowdown]; a != nil {
		s.slowdown = a.Factor
	}
	if s.armed[FaultFreezeMetrics] == nil {
		s.frozen = nil
	}
	s.life.refuse(s.armed[FaultRefuse] != nil)
	s.zombie = s.armed[FaultZombie] != nil
	if !s.zombie {
		s.kick()
	}
	s.pausing.Broadcast()
}

// active returns the armed fault of a kind.
func (s *Server) active(kind string) (Fault, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.armed[kind]
	if a == nil || !a.until.IsZero() && time.Now().After(a.until) {
		return Fault{}, false
	}
	return a.Fault, true
}

// takeFault returns the fault that x meets: its own header's first, else one that is armed. A server fault in the header
// is armed at once. nil: none.
func (s *Server) takeFault(x *exchange) *Fault {
	if spec := x.r.Header.Get(FaultHeader); spec != "" {
		f, err := ParseFault(spec)
		if err != nil {
			return &Fault{Kind: FaultStatus, Status: http.StatusBadRequest, After: -1}
		}
		if f.hitsRequest() {
			s.count(func(st *Stats) { st.Faulted++ })
			return &f
		}
		s.SetFault(f)
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kind := range requestFaults() {
		a := s.armed[kind]
		if a == nil {
			continue
		}
		if a.Count > 0 {
			if a.left--; a.left <= 0 {
				delete(s.armed, kind)
			}
		}
		f := a.Fault
		s.stats.Faulted++
		return &f
	}
	return nil
}

func requestFaults() []string {
	return []string{FaultStatus, FaultReset, FaultCut, FaultEarlyEnd, FaultHang, FaultSlow}
}

func (f *Fault) hitsRequest() bool {
	for _, kind := range requestFaults() {
		if f.Kind == kind {
			return true
		}
	}
	return false
}

// seconds renders a Retry-After: whole seconds, rounded up.
func seconds(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }
