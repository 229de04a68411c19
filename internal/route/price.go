package route

// Price returns the Pick of a slot that something else chose: what Choose would have said of it, its reason aside. A slot out of
// range gives Slot -1. It is for comparing policies over the same books.
func Price(s *Snapshot, r *Request, hits []int32, slot int) Pick {
	if slot < 0 || slot >= len(s.Endpoints) {
		return Pick{Slot: -1}
	}
	v := newView(s, r)
	v.survey(s, hits, nil)
	e, hit := &s.Endpoints[slot], v.hitAt(s, hits, slot)
	var c cost
	v.costOf(&c, e, slot, hit, v.projected(e, hit))
	return Pick{Slot: slot, Cost: c.sum(), HitTokens: int32(hit), Predicted: c.predicted, Work: c.engine}
}
