package proxy

import (
	"sync"
	"time"
)

// roster knows every exchange that has begun and not ended, in the order of their arrival.
type roster struct {
	mu          sync.Mutex
	first, last *exchange
	n           int
}

func (r *roster) add(x *exchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x.before, r.n = r.last, r.n+1
	if r.last != nil {
		r.last.after = x
	} else {
		r.first = x
	}
	r.last = x
}

func (r *roster) remove(x *exchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n--
	if x.before != nil {
		x.before.after = x.after
	} else {
		r.first = x.after
	}
	if x.after != nil {
		x.after.before = x.before
	} else {
		r.last = x.before
	}
	x.before, x.after = nil, nil
}

// InFlight returns how many requests have begun and not ended, WebSockets and uploads among them, and for how long the
// oldest has been going on. It holds for the Proxies that this one follows and that follow it too.
func (p *Proxy) InFlight() (n int, oldest time.Duration) {
	r := &p.roster
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.first != nil {
		oldest = r.first.Now()
	}
	return r.n, oldest
}
