package acceptance

import (
	"net/http"
	"testing"

	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// A gateway whose endpoints were all down becomes ready when they come back, without a request that finds it out: what is not
// ready gets no requests in Kubernetes.
func TestReadyAgainWithoutTraffic(t *testing.T) {
	servers := []*scripted{scriptedAt(t, loopback.Free(t)), scriptedAt(t, loopback.Free(t))} // nobody else takes their ports
	urls := []string{servers[0].URL, servers[1].URL}
	g := gateway(t, list(urls...), "", "")
	waitReady(t, g, 2)
	for _, s := range servers {
		s.CloseClientConnections()
		s.Close()
	}
	if a := post(client(t, 1), g, "/v1/chat/completions", chatBody([]message{{"user", "hello"}}, 4)); a.status != 503 {
		t.Fatalf("status %d with every server down", a.status)
	}
	readyz := func() int {
		r, err := http.Get(g.Admin() + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		return r.StatusCode
	}
	eventually(t, patience, func() string {
		if readyz() != 503 {
			return "ready although every server is down"
		}
		return ""
	})
	scriptedAt(t, servers[0].name)
	eventually(t, patience, func() string {
		if readyz() != 200 {
			return "not ready although a server is back"
		}
		return ""
	})
}
