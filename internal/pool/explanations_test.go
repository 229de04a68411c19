package pool

import (
	"testing"

	"pointsman.dev/pointsman/internal/health"
)

// A request that went from one endpoint to another is explained as a whole, in order, with what became of each pick.
func TestExplanationsInOrder(t *testing.T) {
	p, c := testPool(t, 3, Config{Name: "p"})
	b := mustPick(t, p, prompt("x", chain(1, 1, 0, 20)))
	first := b.Endpoint().Name
	c.advance(1e6)
	if !b.Repick(health.KindConnect) {
		t.Fatal("no other endpoint")
	}
	second := b.Endpoint().Name
	list := p.Explanations("x")
	if len(list) != 2 || list[0].Endpoint != first || list[1].Endpoint != second || list[0].Ended != "no connection" || list[1].Ended != "" {
		t.Fatalf("%+v", list)
	}
	if list[0].AgeSeconds <= list[1].AgeSeconds {
		t.Errorf("ages %v and %v", list[0].AgeSeconds, list[1].AgeSeconds)
	}
	b.Done(Result{Outcome: OK})
	mustPick(t, p, prompt("y", nil)).Done(Result{Outcome: Cut})
	if list = p.Explanations("x"); len(list) != 2 || list[1].Ended != "answered" {
		t.Errorf("%+v", list)
	}
	if list = p.Explanations("y"); len(list) != 1 || list[0].Ended != "broken off" {
		t.Errorf("%+v", list)
	}
	if list = p.Explanations("z"); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}
