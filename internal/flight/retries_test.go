package flight

import (
	"fmt"
	"testing"

	"pointsman.dev/pointsman/internal/telemetry"
)

// TestFailuresAreBounded: what is remembered of failed requests stays in its table.
func TestFailuresAreBounded(t *testing.T) {
	var f failures
	for key := range uint64(10 * maxFailures) {
		f.note(key+1, fmt.Sprint(key))
	}
	if len(f.table) != maxFailures {
		t.Errorf("%d entries", len(f.table))
	}
	if got := f.find(10 * maxFailures); got != fmt.Sprint(10*maxFailures-1) {
		t.Errorf("the newest is %q", got)
	}
	if got := f.find(1); got != telemetry.ReachedUnknown {
		t.Errorf("the oldest is %q", got)
	}
}
