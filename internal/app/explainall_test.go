package app

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/pool"
)

// A request that moved from one pool to the next is explained with its picks in both, in order; the latest request is the latest of
// all pools.
func TestExplainOverPools(t *testing.T) {
	g := &Gateway{}
	pick := func(p *pool.Pool, id string, number uint64, out pool.Outcome) {
		b, err := p.Pick(&pool.Request{ID: id, Number: number, PromptBytes: 400})
		if err != nil {
			t.Fatal(err)
		}
		b.Done(pool.Result{Outcome: out})
	}
	for i, name := range []string{"large", "small"} { // not in the order in which they are asked
		p := pool.New(pool.Config{Name: name}, nil, nil)
		p.SetTargets([]discover.Target{{URL: "http://10.0.0." + string(rune('1'+i)) + ":8000"}})
		g.pools = append(g.pools, &member{pool: p})
	}
	pick(g.pools[1].pool, "old", 1, pool.OK)
	pick(g.pools[1].pool, "new", 2, pool.OK) // other requests that their clients gave the same id
	pick(g.pools[0].pool, "new", 2, pool.OK)
	pick(g.pools[0].pool, "new", 3, pool.OK)
	pick(g.pools[1].pool, "new", 4, pool.ClientError)
	pick(g.pools[0].pool, "new", 4, pool.OK)
	for _, id := range []string{"", "new"} {
		answer, ok := g.explain(id)
		x, is := answer.(explanation)
		if !ok || !is || x.ID != "new" || x.Pool != "large" || x.Ended != "answered" || len(x.Earlier) != 1 || x.Earlier[0].Pool != "small" || x.Others != 2 {
			t.Fatalf("%q: %+v", id, answer)
		}
	}
	if x, ok := g.explain("none"); ok {
		t.Errorf("%+v", x)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, _ := g.explain(r.URL.Query().Get("id"))
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer s.Close()
	_, text, _ := runExplain(t, "--admin", s.URL, "new")
	first, second, ok := strings.Cut(text, "Pick 2 of 2. ")
	if !ok || !strings.HasPrefix(first, "Pick 1 of 2. ") || !strings.Contains(first, "pool small") || !strings.Contains(first, "What became of it there: refused") ||
		!strings.Contains(second, "pool large") || !strings.Contains(second, "the same id: 2.") || strings.Count(text, "Terms, all in time") != 1 {
		t.Error(text)
	}
}
