package books

import (
	"math"
	"reflect"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/ledger"
	"pointsman.dev/pointsman/internal/prefix"
	"pointsman.dev/pointsman/internal/route"
)

// Every figure of a snapshot comes from the ledger's of its name.
func TestLoad(t *testing.T) {
	var l ledger.Load
	figures := reflect.ValueOf(&l).Elem()
	for i := range figures.NumField() {
		figures.Field(i).SetInt(int64(i) + 1)
	}
	got := reflect.ValueOf(Load(l))
	for i := range got.NumField() {
		name := got.Type().Field(i).Name
		if want := figures.FieldByName(name); !want.IsValid() || got.Field(i).Int() != want.Int() {
			t.Errorf("%s is not the ledger's", name)
		}
	}
}

func TestExpected(t *testing.T) {
	for _, c := range []struct {
		predicted, kappa, scale, slack float64
		want                           time.Duration
	}{
		{0.5, 0, 0, 1, 500 * time.Millisecond}, {0.5, 2, 3, 1, 3 * time.Second}, {0.5, 2, 3, 2, 6 * time.Second},
		{-1, 1, 1, 1, 0}, {math.NaN(), 1, 1, 1, 0}, {math.Inf(1), 1, 1, 1, 1e6 * time.Second},
	} {
		got := Expected(&route.Pick{Predicted: c.predicted}, &route.Endpoint{Kappa: c.kappa}, &route.Params{Scale: c.scale}, c.slack)
		if got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// The index is told of changes above 2 %, and of nothing less: it forgets what has no room then.
func TestResize(t *testing.T) {
	for _, c := range []struct {
		was, size int64
		told      bool
	}{{0, 1000, true}, {1000, 1020, false}, {1000, 1021, true}, {1000, 980, false}, {1000, 979, true}, {0, 0, false}} {
		index := prefix.NewIndex()
		index.Insert(0, []prefix.Block{{Hash: 1, End: 5000}}, 0)
		got, want := Resize(index, 0, c.was, c.size), c.was
		if c.told {
			want = c.size
		}
		if _, held := index.Held(0); got != want || (held == 0) != c.told {
			t.Errorf("%+v: %d, and %d bytes are held", c, got, held)
		}
	}
}
