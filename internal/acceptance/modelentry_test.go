package acceptance

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// An entry that says nothing of pools, only a limit or another name, leads where the endpoints list what it serves, not to the
// first pool of the file.
func TestModelEntryWithoutPools(t *testing.T) {
	t.Parallel()
	server := func(model string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			switch r.URL.Path {
			case "/v1/models":
				_, _ = w.Write([]byte(`{"object":"list","data":[{"id":"` + model + `","object":"model"}]}`))
			case "/health":
			case "/v1/chat/completions":
				_, _ = w.Write([]byte(`{"id":"x","object":"chat.completion","model":"` + model + `","choices":[{"index":0,"message":{"role":"assistant","content":"` + model + `"},"finish_reason":"stop"}]}`))
			default:
				http.NotFound(w, r)
			}
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	p := serveFile(t, "pools:\n  - {name: first, "+list(server("other"))+"}\n  - {name: second, "+list(server("chat"))+
		"}\nmodels:\n  - {name: chat, limit: 10s}\n  - {name: fast, serves: chat}\n")
	ready(t, p)
	for _, name := range []string{"chat", "fast"} {
		eventually(t, patience, func() string {
			body := chatBody([]message{{"user", "hello"}}, 4)
			body["model"] = name
			a := post(http.DefaultClient, nil, p.api+"/v1/chat/completions", body)
			if !strings.Contains(string(a.body), `"content":"chat"`) {
				return fmt.Sprintf("%s: status %d: %s", name, a.status, a.body)
			}
			return ""
		})
	}
}
