package acceptance

import (
	"net/http"
	"syscall"
	"testing"
)

// A reload puts times, limits of models and CORS in force for the next request, and takes them away again.
func TestReloadOfTheListener(t *testing.T) {
	t.Parallel()
	_, urls := fleet(t, 1)
	pools := "pools:\n  - {name: a, " + list(urls...) + "}\n"
	p := serveFile(t, "limit: 20s\n"+pools)
	ready(t, p)
	preflight := func() string {
		r, err := http.NewRequest(http.MethodOptions, p.api+"/v1/chat/completions", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Origin", "https://app.example")
		r.Header.Set("Access-Control-Request-Method", "POST")
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
		return a.Header.Get("Access-Control-Allow-Origin")
	}
	limit := func(model string) string {
		body := chatBody([]message{{"user", "hello"}}, 4)
		body["model"] = model
		a := post(http.DefaultClient, nil, p.api+"/v1/chat/completions", body)
		return a.header.Get("X-Pointsman-Limit")
	}
	own := chatBody(nil, 1)["model"].(string)
	reload := func(seconds, text string) {
		t.Helper()
		p.write(t, "limit: "+seconds+"s\n"+text)
		signal(t, p, syscall.SIGHUP)
		eventually(t, patience, func() string {
			if got := limit(own); got != seconds {
				return "the limit is " + got
			}
			return ""
		})
	}
	if got := preflight(); got != "" {
		t.Errorf("without cors pages of %q are let in", got)
	}
	reload("10", "cors: {origins: [https://app.example]}\n"+pools+"models:\n  - {name: slow, serves: "+own+", limit: 15s}\n")
	if got := preflight(); got != "https://app.example" {
		t.Errorf("pages of %q are let in", got)
	}
	if got := limit("slow"); got != "15" {
		t.Errorf("the limit of the model is %s", got)
	}
	reload("20", pools)
	if got := preflight(); got != "" {
		t.Errorf("after cors is gone pages of %q are let in", got)
	}
}
