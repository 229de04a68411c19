package prefix

import "slices"

// A Promise is one request's part in what an Index credits to its slot. The chain counts as held from the pick on, although it is
// computed only later: until then other picks rely on it, and if the request ends before, what only it would have brought has to
// be taken back. Set the exported fields, then Add it; the zero Promise is in no list.
type Promise struct {
	Data     any     // the owner's, for All
	Chain    []Block // of the prompt; kept while the promise is open
	Held     int32   // bytes of it that the index credited to the slot before
	Credited bool    // the chain was inserted into the index

	keep       int32 // bytes that others have shown to be held since
	list       *Promises
	prev, next *Promise
}

// Promises are those of one slot whose prompt is not known to be computed. The zero value has none.
type Promises struct{ first *Promise }

// maxWalk bounds how many promises are compared with one another. Beyond it less is credited than is held.
const maxWalk = 128

// All ranges over the promises, the latest first, up to a bound. The one at hand may be ended meanwhile.
func (l *Promises) All(yield func(*Promise) bool) {
	walked := 0
	for p := l.first; p != nil && walked < maxWalk; walked++ {
		next := p.next
		if !yield(p) {
			return
		}
		p = next
	}
}

// Unsure reports whether the first held bytes of chain, which the index credits to the slot, may be a mere promise.
func (l *Promises) Unsure(chain []Block, held int32) bool {
	if held == 0 {
		return false
	}
	for p := range l.All {
		if p.Held < held && Common(p.Chain, chain) >= held {
			return true
		}
	}
	return false
}

// Sure cuts a chain that the index credits to the slot to what has been computed there: the rest is promised.
func (l *Promises) Sure(chain []Block) []Block {
	for o := range l.All {
		sure := max(o.Held, o.keep)
		if o.Credited && Common(o.Chain, chain) > sure {
			n, _ := slices.BinarySearchFunc(chain, sure+1, func(b Block, end int32) int { return int(b.End - end) })
			chain = chain[:n]
		}
	}
	return chain
}

// Computed records that the slot has computed chain: what promises share with it is held, whatever becomes of them.
func (l *Promises) Computed(chain []Block) {
	for o := range l.All {
		if o.Credited {
			o.keep = max(o.keep, Common(o.Chain, chain))
		}
	}
}

// Add makes p, which is in no list, one of them.
func (l *Promises) Add(p *Promise) {
	p.list, p.prev, p.next, p.keep = l, nil, l.first, 0
	if l.first != nil {
		l.first.prev = p
	}
	l.first = p
}

// Keep ends p because the prompt is computed: what others share with it is held, whatever becomes of them. It is a no-op when p has
// ended.
func (p *Promise) Keep() {
	l := p.list
	if l == nil {
		return
	}
	if p.Credited {
		l.Computed(p.Chain)
	}
	p.end()
}

// Break ends p because the prompt was not computed: what x credits to the slot for it is taken back, except what was held before and
// what others vouch for. It is a no-op when p has ended.
func (p *Promise) Break(x *Index, slot int) {
	l := p.list
	if l == nil {
		return
	}
	if p.Credited {
		p.Credited = false
		if left := l.without(p); left < p.Chain[len(p.Chain)-1].End {
			x.Truncate(slot, p.Chain, left)
		}
	}
	p.end()
}

// without returns how many bytes of p's chain are held if p is not, and lowers what others relied on p for.
func (l *Promises) without(p *Promise) int32 {
	sure := max(p.Held, p.keep)
	left := sure
	for o := range l.All {
		if o == p || !o.Credited {
			continue
		}
		shared := Common(o.Chain, p.Chain)
		left = max(left, shared)
		if o.Held <= shared {
			o.Held = min(o.Held, max(sure, o.keep)) // what it was promised may have been of p
		}
	}
	return left
}

// end takes p out of its list and lets its chain go.
func (p *Promise) end() {
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		p.list.first = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	}
	p.Chain, p.list, p.prev, p.next = nil, nil, nil, nil
}
