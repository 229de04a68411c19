package trace

import (
	"container/heap"
	"errors"
	"fmt"
	"io"
	"time"

	"pointsman.dev/pointsman/internal/sim"
)

// Options say how a trace is replayed.
type Options struct {
	Rate   float64       // arrivals come so many times as fast; 1 when 0
	Jitter time.Duration // every arrival is put off by a random time below this: for stamps that were rounded down

	SLO      time.Duration // within which the first token must come; 0: whenever
	LongSLO  time.Duration // the same for long prompts; 0: as SLO
	LongFrom int           // tokens of a prompt from which it is long; 0: none is
}

// Replay sends the requests of a trace in one simulation. Close it when that has ended.
type Replay struct {
	trace *Trace
	opt   Options
	file  io.Closer
	next  *sorted
	ev    Event
	err   error
}

// Replay opens the file once more.
func (t *Trace) Replay(o Options) (*Replay, error) {
	if o.Rate == 0 {
		o.Rate = 1
	}
	if !(o.Rate > 0 && o.Rate < 1e6) || o.Jitter < 0 || o.SLO < 0 || o.LongSLO < 0 || o.LongFrom < 0 {
		return nil, fmt.Errorf("replaying %s: a negative option, or a rate of %g", t.File, o.Rate)
	}
	f, err := openFile(t.File)
	if err != nil {
		return nil, err
	}
	next, err := t.events(f)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &Replay{trace: t, opt: o, file: f, next: next}, nil
}

// Close ends the replay.
func (r *Replay) Close() error { return r.file.Close() }

// Err returns what ended the replay before its time: the file has changed since it was opened, or is too much out of order.
func (r *Replay) Err() error { return r.err }

// Length returns how long the replay lasts, from the first arrival to the last.
func (r *Replay) Length() time.Duration { return r.trace.Length(r.opt) }

// Length returns how long a replay with these options lasts, from the first arrival to the last.
func (t *Trace) Length(o Options) time.Duration {
	rate := o.Rate
	if rate == 0 {
		rate = 1
	}
	return time.Duration(float64(t.Span)/rate) + o.Jitter
}

// Workload sends every request at its time, up to the end of arrivals. It is a sim.Workload for one simulation.
func (r *Replay) Workload(s *sim.Sim) {
	if !r.read() {
		return
	}
	var due func()
	due = func() {
		if s.Now() >= s.Length() {
			return
		}
		req, at := r.request(s), s.Now()
		if r.opt.Jitter > 0 {
			at += time.Duration(s.Rand.Int64N(int64(r.opt.Jitter)))
		}
		switch {
		case at == s.Now():
			s.Send(req)
		case at < s.Length():
			s.At(at, func() { s.Send(req) })
		}
		if r.read() {
			s.At(r.at(), due)
		}
	}
	s.At(r.at(), due)
}

// read fetches the next event; false at the end or when something went wrong.
func (r *Replay) read() bool {
	err := r.next.read(&r.ev)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return err == nil
}

// at returns when the event that was read is due.
func (r *Replay) at() time.Duration {
	return time.Duration(float64(r.ev.At-r.trace.First) / r.opt.Rate)
}

// request turns the event that was read into what is sent.
func (r *Replay) request(s *sim.Sim) *sim.Request {
	ev := &r.ev
	req := &sim.Request{Parts: make([]sim.Part, len(ev.Parts)), Output: ev.Output, Class: ev.Class, SLO: r.opt.SLO, Patience: ev.Left}
	for i, p := range ev.Parts {
		if p.ID == 0 {
			p.ID = s.NewID()
		}
		req.Parts[i] = p
	}
	if req.Output == 0 {
		req.Output = r.trace.MeanOutput()
	}
	long := r.opt.LongFrom > 0 && sim.Tokens(ev.Parts) >= r.opt.LongFrom
	if long && r.opt.LongSLO > 0 {
		req.SLO = r.opt.LongSLO
	}
	if req.Class == "" && r.opt.LongFrom > 0 {
		req.Class = "short"
		if long {
			req.Class = "long"
		}
	}
	return req
}

// sorted puts the events of a file in order of arrival. It holds those that may be overtaken.
type sorted struct {
	lines    *lines
	disorder time.Duration
	held     byArrival
	latest   time.Duration
	n        int
	most     int // events that it may hold
	ended    bool
}

func (t *Trace) events(f io.Reader) (*sorted, error) {
	l, _, err := newLines(f, t.File, t.pool)
	if err != nil {
		return nil, fmt.Errorf("reading the trace: %w", err)
	}
	if l.access != nil {
		l.access.ratio = t.bytesPerToken
	}
	return &sorted{lines: l, disorder: t.disorder, most: mostHeld}, nil
}

// read fills ev with the next event; io.EOF at the end.
func (s *sorted) read(ev *Event) error {
	for !s.ended && (len(s.held) == 0 || s.latest-s.held[0].ev.At < s.disorder) {
		next := Event{Parts: ev.Parts[:0]}
		ev.Parts = nil
		err := s.lines.next(&next)
		var why skipped
		switch {
		case errors.As(err, &why):
		case errors.Is(err, io.EOF):
			s.ended = true
		case err != nil:
			return err
		default:
			s.n++
			s.latest = max(s.latest, next.At)
			heap.Push(&s.held, numbered{next, s.n})
			if len(s.held) > s.most {
				return fmt.Errorf("%s: some arrivals are %v earlier than ones before them, with more than %d between: sort it by time first", s.lines.file, s.disorder, s.most)
			}
		}
	}
	if len(s.held) == 0 {
		return io.EOF
	}
	*ev = heap.Pop(&s.held).(numbered).ev
	return nil
}

// numbered is an event with its place in the file, which decides between equal arrivals.
type numbered struct {
	ev Event
	n  int
}

// byArrival is a heap of events.
type byArrival []numbered

func (h byArrival) Len() int { return len(h) }
func (h byArrival) Less(i, j int) bool {
	return h[i].ev.At < h[j].ev.At || h[i].ev.At == h[j].ev.At && h[i].n < h[j].n
}
func (h byArrival) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push and Pop are of container/heap.
func (h *byArrival) Push(x any) { *h = append(*h, x.(numbered)) }

// Pop is of container/heap.
func (h *byArrival) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = numbered{}
	*h = old[:len(old)-1]
	return x
}
