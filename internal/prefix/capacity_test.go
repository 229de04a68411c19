package prefix

import (
	"math"
	"testing"
)

// TestCapacityBound: whatever an endpoint says that it holds, what is remembered of it is bounded.
func TestCapacityBound(t *testing.T) {
	x := NewIndex()
	for _, bytes := range []int64{MaxCapacity + 1, math.MaxInt64} {
		x.SetCapacity(0, bytes)
		if got := x.slots[0].limit(); got != MaxCapacity {
			t.Errorf("a capacity of %d bytes became %d", bytes, got)
		}
	}
}
