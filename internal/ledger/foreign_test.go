package ledger

import (
	"testing"
	"time"
)

func TestForeign(t *testing.T) {
	var f Foreign
	want := func(what string, load, waiting int32) {
		t.Helper()
		if f.Load != load || f.Waiting != waiting {
			t.Errorf("%s: %d foreign, %d of them waiting; want %d and %d", what, f.Load, f.Waiting, load, waiting)
		}
	}
	f.Reported(3, 1, 0, true)
	want("a first report", 3, 1)
	f.Booked(2)
	f.Reported(5, 0, 0, false)
	want("two of ours came", 3, 0)
	f.Released(2)
	f.Reported(5, 0, 0, false)
	want("the report may show two that ended meanwhile", 3, 0)
	f.Reported(5, 4, 0, false)
	want("one report can show two that the engine did not let go yet", 3, 3)
	f.Reported(5, 4, 0, false)
	want("the second one is believed", 5, 4)
	f.BookedBefore(2)
	want("two of them are others' of whom we know now", 3, 3)
	f.Booked(2)
	f.Reported(5, 2, 1, false)
	want("of two that wait one is ours", 3, 1)
	f.ReleasedBefore(2)
	f.Released(2)
	f.Reported(5, 0, 0, true)
	want("both had ended by the report before", 5, 0)
	f.Unreported()
	want("nothing is said", 0, 0)
	if !f.Empty() {
		t.Error("not empty")
	}
}

// TestMarkIsPutRight: of bookings of which the books learn after a report, and of ends, nothing is left in its mark.
func TestMarkIsPutRight(t *testing.T) {
	l := New()
	known := l.Book(0, 100, 40, 10, 0)
	l.Prefilled(known, 0)
	l.Streamed(known, 3)
	want := l.Load(0)
	gone := l.Book(0, 200, 50, 20, 0)
	begun := l.Book(0, 300, 60, 20, 0)
	l.Prefilled(begun, 0)
	l.Streamed(begun, 7)
	l.Mark(0, time.Second)
	late := l.Book(0, 400, 70, 30, time.Second)
	l.Remark(late)
	for _, k := range []Ticket{gone, begun, late} {
		l.Unmark(k)
		l.Release(k)
		l.Unmark(k) // nobody's any more
	}
	got := l.AtMark(0)
	got.OldestUnprefilled = 0
	if got != want || l.Load(0) != want {
		t.Errorf("at the mark %+v, now %+v, want %+v", got, l.Load(0), want)
	}
}
