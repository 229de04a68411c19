package sim

import (
	"time"

	"pointsman.dev/pointsman/internal/engine"
)

// Buckets describes an engine that runs compiled shapes only, as vLLM on Gaudi does: the tokens of a prefill and the number of
// decoding requests are padded up to the next bucket, and a shape that was not seen before stalls the engine while it is compiled.
// Buckets are Min, 2*Min, 4*Min, ... The zero value pads nothing.
type Buckets struct {
	Prefill int           // smallest bucket of prefill tokens; 0: not padded
	Decode  int           // smallest bucket of decoding requests; 0: not padded
	Compile time.Duration // stall of a shape's first use
	Warm    bool          // every shape was compiled before the endpoint joined
}

// shapes remembers which shapes one engine has compiled: bit k of a word for bucket Min<<k.
type shapes struct{ prefill, decode uint32 }

// padded returns the bucket of n and its number.
func padded(n, least int) (size, number int) {
	size = least
	for size < n {
		size *= 2
		number++
	}
	return size, number
}

// extra is how much longer a step takes for its padding and for what must be compiled.
func (s *shapes) extra(spec *Endpoint, st *engine.Step) time.Duration {
	b, p := &spec.Buckets, &spec.Engine.Profile
	var d time.Duration
	add := func(n, least int, price float64, seen *uint32) {
		if n == 0 || least <= 0 {
			return
		}
		size, k := padded(n, least)
		d += time.Duration(price * float64(size-n) * float64(time.Second))
		if bit := uint32(1) << min(k, 31); *seen&bit == 0 {
			*seen |= bit
			if !b.Warm {
				d += b.Compile
			}
		}
	}
	add(st.Prefill, b.Prefill, p.P, &s.prefill)
	add(st.Decodes, b.Decode, p.B, &s.decode)
	return d
}
