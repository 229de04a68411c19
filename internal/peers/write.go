package peers

import (
	"errors"
	"math"
	"time"

	"pointsman.dev/pointsman/internal/peers/wire"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/prefix"
)

const (
	maxMessage   = 1 << 20   // bytes that a message may have
	fullMessage  = 128 << 10 // bytes from which on it is sent
	maxEndpoints = 1 << 16   // numbers of endpoints in one stream
	maxPools     = 256       // names of pools in one stream
	stateBlocks  = 1 << 20   // new blocks of prefixes in one full state: 8 MB
)

var errEndpoints = errors.New("numbering endpoints: too many of them in one stream")

// writer turns what happens in pools into messages of one stream.
type writer struct {
	dict    dictionary
	numbers map[[3]string]uint32 // pool, URL, life
	told    map[string]bool      // pools
	send    func([]*wire.Pool) error

	out   []*wire.Pool
	part  *wire.Pool    // the last of out
	bytes int           // about
	late  time.Duration // since the events that are written were taken
}

func newWriter(send func([]*wire.Pool) error) *writer {
	return &writer{numbers: map[[3]string]uint32{}, told: map[string]bool{}, send: send}
}

// open makes part that of a pool.
func (w *writer) open(name string) {
	w.part = &wire.Pool{Name: name}
	w.told[name] = true
	w.out = append(w.out, w.part)
	w.bytes += 16 + len(name)
}

// flush sends what is gathered.
func (w *writer) flush() error {
	if len(w.out) == 0 {
		return nil
	}
	out := w.out
	w.out, w.part, w.bytes = nil, nil, 0
	return w.send(out)
}

// room sends a message that is full and goes on with the same pool.
func (w *writer) room() error {
	if w.bytes < fullMessage {
		return nil
	}
	name := w.part.GetName()
	err := w.flush()
	w.open(name)
	return err
}

// events writes what happened in a pool, in order.
func (w *writer) events(name string, events []pool.Event) error {
	if len(events) == 0 {
		return nil
	}
	w.open(name)
	for i := range events {
		if err := w.event(&events[i]); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) event(e *pool.Event) error {
	if err := w.room(); err != nil {
		return err
	}
	p := w.part
	w.bytes += 10
	switch e.Kind {
	case pool.Booked:
		n, err := w.number(e.Endpoint, e.Life)
		if err != nil {
			return err
		}
		b := &wire.Booked{Id: e.ID, Endpoint: n, Prompt: count(e.Prompt), Uncached: count(e.Uncached), Expected: count(e.Expected),
			AgeMs: w.ago(e), WorkUs: uint32(min(max(0, e.Work*1e6), math.MaxUint32)), Chain: w.chain(e.Blocks), Prefilled: e.Computed, Output: count(e.Output)}
		if e.Answers > 1 {
			b.Answers = uint32(e.Answers)
		}
		p.Booked = append(p.Booked, b)
		w.bytes += 24
	case pool.Prefilled:
		p.Prefilled = append(p.Prefilled, e.ID)
	case pool.Streamed:
		p.Streaming, p.Output = append(p.Streaming, e.ID), append(p.Output, count(e.Output))
	case pool.Ended:
		p.Ended, p.EndedMs = append(p.Ended, e.ID), append(p.EndedMs, w.ago(e))
	}
	return nil
}

// ago is how long ago an event was, in milliseconds.
func (w *writer) ago(e *pool.Event) uint32 {
	return uint32(min(max(0, (e.Age+w.late)/time.Millisecond), math.MaxUint32))
}

func count(n int32) uint32 { return uint32(max(0, n)) }

func (w *writer) chain(blocks []prefix.Block) *wire.Chain {
	c := w.dict.encode(blocks)
	w.bytes += 12 + 8*len(c.GetHashes()) + 3*len(c.GetOdd())
	return c
}

// number returns the number of an endpoint of the pool that is being written, and announces it when it is new.
func (w *writer) number(url, life string) (uint32, error) {
	key := [3]string{w.part.GetName(), url, life}
	n, ok := w.numbers[key]
	if ok {
		return n, nil
	}
	if len(w.numbers) == maxEndpoints {
		return 0, errEndpoints
	}
	n = uint32(len(w.numbers) + 1)
	w.numbers[key] = n
	w.part.Endpoints = append(w.part.Endpoints, &wire.Endpoint{Number: n, Url: url, Life: life})
	w.bytes += 10 + len(url) + len(life)
	return n, nil
}

// state writes all that a pool has in flight and holds.
func (w *writer) state(name string, p *pool.Pool) error {
	w.late = 0
	w.open(name)
	w.part.StateBegins = true
	budget := w.dict.next + stateBlocks
	for i, more := 0, true; more; i++ {
		var st pool.State
		if st, more = p.State(i); st.Endpoint == "" {
			continue
		}
		for _, held := range st.Held {
			if w.dict.next > budget {
				break
			}
			if err := w.held(&st, held); err != nil {
				return err
			}
		}
		for k := range st.Open {
			if err := w.event(&st.Open[k]); err != nil {
				return err
			}
		}
	}
	w.part.StateEnds = true
	return w.flush()
}

// end writes that nothing is in flight in a pool that is no more.
func (w *writer) end(name string) error {
	w.open(name)
	w.part.StateBegins, w.part.StateEnds = true, true
	delete(w.told, name)
	return w.flush()
}

func (w *writer) held(st *pool.State, chain []prefix.Block) error {
	if err := w.room(); err != nil {
		return err
	}
	if len(w.part.GetBooked()) > 0 {
		w.open(w.part.GetName()) // chains refer to the ones before, and of a part what is held is read first
	}
	n, err := w.number(st.Endpoint, st.Life)
	if err == nil {
		w.part.Held = append(w.part.Held, &wire.Held{Endpoint: n, Chain: w.chain(chain)})
	}
	return err
}
