package engine

type status uint8

const (
	idle    status = iota // not in an engine
	waiting               // in Engine.waiting
	skipped               // in Engine.skipped (deferred)
	running               // in Engine.running
)

// seqState is what the engine knows of a Seq between Add and its end. Its slices keep their capacity when the Seq is reused.
type seqState struct {
	status    status
	arrival   uint64 // order of Add
	notBefore uint64 // first step that may admit it

	total     int // prompt + outputs
	computed  int // tokens with KV
	scheduled int // tokens in the step in flight
	outputs   int
	maxOut    int
	cached    int // hit tokens at the first admission
	peak      int // most tokens ever computed, to tell recomputation

	own    []uint64 // hashes of full blocks from index len(base) on
	base   []uint64 // Hashes, nil with Tokens
	salt   uint64   // mixed into each of base and own with Hashes; part of roll with Tokens
	roll   uint64   // with Tokens: hash of all tokens so far
	blocks []int32  // held blocks, in order
	stored int      // leading blocks that are registered

	admitted    bool // was admitted before: look-ups are not booked again
	preemptions int  // not yet booked
	heldBack    heldBack

	prev, next *Seq // queue
}

// heldBack remembers a failed admission, so that the head of the line is not looked up again at every step: the number of its
// blocks that running sequences hold can have grown by blockPool.gains at most.
type heldBack struct {
	valid  bool
	shared int    // its leading blocks held by others at the last look-up
	gains  uint64 // blockPool.gains then
}

// mix64 is the finalizer of SplitMix64: every input bit changes every output bit with probability 1/2.
func mix64(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

func (s *Seq) reset(e *Engine) {
	st := &s.seqState
	*st = seqState{own: st.own[:0], blocks: st.blocks[:0], arrival: e.arrivals, peak: 0}
	if s.Tokens == nil {
		s.base = s.Hashes
		if s.Salt != 0 {
			s.salt = mix64(s.Salt)
		}
		s.extend(e, s.PromptTokens)
		return
	}
	s.roll = mix64(s.Salt + 0x9e3779b97f4a7c15)
	for _, t := range s.Tokens {
		s.push(e, t)
	}
}

// push appends one token.
func (s *Seq) push(e *Engine, t uint32) {
	if s.Tokens == nil {
		s.extend(e, s.total+1)
		return
	}
	s.total++
	s.roll = mix64(s.roll ^ (uint64(t)+1)*0x9e3779b97f4a7c15)
	if s.total%e.cfg.BlockSize == 0 {
		s.own = append(s.own, s.roll)
	}
}

// extend sets the length of a Seq given by Hashes; full blocks that the caller did not name get a hash of their own.
func (s *Seq) extend(e *Engine, total int) {
	s.total = total
	for full := total / e.cfg.BlockSize; len(s.base)+len(s.own) < full; {
		e.unique++
		s.own = append(s.own, mix64(e.unique*0x9e3779b97f4a7c15))
	}
}

// sample draws the next token of the answer.
func (s *Seq) sample(e *Engine) uint32 {
	switch {
	case s.outputs < len(s.Answer):
		return s.Answer[s.outputs]
	case s.Tokens == nil:
		return 0
	}
	return uint32(mix64(s.roll^0x2545f4914f6cdd1d) % uint64(e.cfg.Vocab))
}

// PromptLen is the number of prompt tokens, valid after Add.
func (s *Seq) PromptLen() int { return s.PromptTokens }

// Outputs is the number of tokens emitted so far.
func (s *Seq) Outputs() int { return s.outputs }

// BlockHash is the hash of full block i of an active sequence, as seen in BlockEvent.
func (s *Seq) BlockHash(i int) uint64 {
	if i < len(s.base) {
		return s.base[i] ^ s.salt
	}
	return s.own[i-len(s.base)] ^ s.salt
}

// queue is a list of waiting sequences, linked through the sequences.
type queue struct {
	head, tail *Seq
	n          int
}

// insert puts s behind at; at the front when at is nil.
func (q *queue) insert(s, at *Seq) {
	next := q.head
	if at != nil {
		next = at.next
	}
	s.prev, s.next = at, next
	if at != nil {
		at.next = s
	} else {
		q.head = s
	}
	if next != nil {
		next.prev = s
	} else {
		q.tail = s
	}
	q.n++
}

// insertByRank keeps the queue in order of priority, then arrival.
func (q *queue) insertByRank(s *Seq) {
	at := q.tail
	for at != nil && s.before(at) {
		at = at.prev
	}
	q.insert(s, at)
}

func (q *queue) remove(s *Seq) {
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		q.head = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		q.tail = s.prev
	}
	s.prev, s.next = nil, nil
	q.n--
}

func (s *Seq) before(t *Seq) bool {
	if s.Priority != t.Priority {
		return s.Priority < t.Priority
	}
	return s.arrival < t.arrival
}
