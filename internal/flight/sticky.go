package flight

import (
	"sync"

	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
)

// maxStickies bounds how many stored responses are remembered.
const maxStickies = 8192

// keeper is the endpoint that keeps a stored response.
type keeper struct {
	pool     *pool.Pool
	endpoint string
}

// stickies remember which endpoint made a stored response; the oldest are forgotten first. The zero value is ready.
type stickies struct {
	mu   sync.Mutex
	at   map[string]keeper
	ring []string
	next int
}

func (s *stickies) find(id string) keeper {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at[id]
}

// Keeper returns the name of the endpoint that keeps a stored response, "" if none is known.
func (m *Memory) Keeper(id string) string { return m.sticky.find(id).endpoint }

func (s *stickies) keep(id string, k keeper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at = map[string]keeper{}
	}
	if _, have := s.at[id]; have {
		s.at[id] = k
		return
	}
	if len(s.ring) < maxStickies {
		s.ring = append(s.ring, id)
	} else {
		delete(s.at, s.ring[s.next])
		s.ring[s.next] = id
		s.next = (s.next + 1) % maxStickies
	}
	s.at[id] = k
}

// keepResponse remembers which endpoint made the response that is passing: follow-ups by its id can be served there only.
func (a *Answer) keepResponse() {
	f := a.f
	if f.API.Kind != llmapi.Responses || a.known {
		return
	}
	if id := a.Tap.ResponseID(); id != "" {
		a.known = true
		f.Desk.Memory.sticky.keep(id, keeper{pool: f.Pool, endpoint: f.Booking.Endpoint().Name})
	}
}
