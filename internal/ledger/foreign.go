package ledger

import "math"

// Foreign finds what one endpoint has in flight that is not in the books: what it reports less what the books hold. It counts sequences,
// since a request for n answers is n to an engine. The zero value is that of an endpoint of which nothing was heard.
type Foreign struct {
	Load    int32 // sequences that came past the books
	Waiting int32 // of these, waiting for room

	raw    int32 // by the last report alone
	booked int   // in the books
	most   int   // most of them since the last report
}

// Booked enters n sequences.
func (f *Foreign) Booked(n int) {
	f.booked += n
	f.most = max(f.most, f.booked)
}

// Released takes n sequences off.
func (f *Foreign) Released(n int) { f.booked -= n }

// Empty reports whether the books hold none.
func (f *Foreign) Empty() bool { return f.booked == 0 }

// Reported takes a report of all sequences of the endpoint, some of which wait for room, while so many of the requests in the books are
// decoding. A report may show one that ended meanwhile, so that the most of the books since the last report are taken off. A single
// report can show one that the books let go and the engine not yet: two in a row must agree, unless alone says that reports are rare.
func (f *Foreign) Reported(all int64, waiting int32, decoding int, alone bool) {
	raw := int32(min(max(0, all-int64(f.most)), math.MaxInt32))
	f.Load = min(raw, f.raw)
	if alone {
		f.Load = raw
	}
	f.raw = raw
	f.Waiting = min(f.Load, max(0, waiting-int32(max(0, f.booked-decoding))))
	f.most = f.booked
}

// Unreported forgets what was found: the endpoint says nothing of it, or is another one now.
func (f *Foreign) Unreported() {
	f.Load, f.Waiting, f.raw = 0, 0, 0
	f.most = f.booked
}

// BookedBefore says that n sequences, which are Booked only now, were in flight at the last report already: they looked like foreign
// ones, or like ones that wait for room.
func (f *Foreign) BookedBefore(n int) {
	f.raw = max(0, f.raw-int32(n))
	f.Load = max(0, f.Load-int32(n))
	f.Waiting = min(f.Load, f.Waiting)
}

// ReleasedBefore says that n sequences, which are about to be Released, had ended by the last report: since then there were fewer in
// the books than it seemed.
func (f *Foreign) ReleasedBefore(n int) { f.most = max(f.most-n, f.booked-n) }
