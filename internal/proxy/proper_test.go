package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"pointsman.dev/pointsman/internal/pool"
)

// typed answers with a status, a Content-Type (none if it is "") and a body, of known length or not.
func typed(code int, kind, body string, chunked bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Type"] = nil
		if kind != "" {
			w.Header().Set("Content-Type", kind)
		}
		if code >= 300 && code < 400 {
			w.Header().Set("Location", "/login")
		}
		w.WriteHeader(code)
		if chunked {
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, body)
	}
}

// TestProperAnswers tells answers of an API from those of another program at the endpoint's address. The others are
// failures of the endpoint, and the client gets an error.
func TestProperAnswers(t *testing.T) {
	const page = "<html><body>Log in</body></html>"
	form := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n"
	cases := []struct {
		name, path, body string
		handler          http.HandlerFunc
		status           int // for the client
	}{
		{"JSON", chat, chatBody, typed(200, "application/json", okJSON, false), 200},
		{"JSON in chunks, with a charset", chat, chatBody, typed(200, "Application/JSON; charset=UTF-8", okJSON, true), 200},
		{"problem JSON", chat, chatBody, typed(200, "application/vnd.x+json", okJSON, true), 200},
		{"JSON without a type", chat, chatBody, typed(200, "", okJSON, true), 200},
		{"JSON as text", chat, chatBody, typed(200, "text/plain; charset=utf-8", okJSON, false), 200},
		{"vectors", "/pooling", `{"model":"m","input":"x"}`, typed(200, "application/octet-stream", "\x01\x02", true), 200},
		{"detokenize", "/detokenize", `{"model":"m","tokens":[1]}`, typed(200, "application/json", `{"prompt":"x"}`, false), 200},
		{"transcript as text", "/v1/audio/transcriptions", form, typed(200, "text/plain; charset=utf-8", "hello", false), 200},
		{"transcript of silence", "/v1/audio/transcriptions", form, typed(200, "text/plain; charset=utf-8", "", false), 200},
		{"subtitles", "/v1/audio/transcriptions", form, typed(200, "text/vtt", "WEBVTT", true), 200},
		{"empty", chat, chatBody, typed(200, "", "", false), 502},
		{"empty stream", chat, streamBody, typed(200, "", "", false), 502},
		{"empty stream, typed", chat, streamBody, typed(200, "text/event-stream", "", false), 502},
		{"empty messages", "/v1/messages", `{"model":"m","max_tokens":1,"messages":[]}`, typed(200, "", "", false), 502},
		{"empty JSON in chunks", chat, chatBody, typed(200, "application/json", "", true), 502},
		{"empty embedding", "/v1/embeddings", `{"model":"m","input":"x"}`, typed(200, "", "", true), 502},
		{"page", chat, chatBody, typed(200, "text/html; charset=utf-8", page, false), 502},
		{"page for a stream", chat, streamBody, typed(200, "text/html", page, true), 502},
		{"page without a type", chat, chatBody, typed(200, "", page, true), 502},
		{"greeting", chat, chatBody, typed(200, "text/plain", "It works!", false), 502},
		{"page for audio", "/v1/audio/transcriptions", form, typed(200, "text/html", page, false), 502},
		{"empty audio", "/v1/audio/transcriptions", form, typed(200, "", "", false), 502},
		{"204", chat, chatBody, typed(204, "", "", false), 502},
		{"307", chat, chatBody, typed(307, "", "", false), 502},
		{"302 with a page", "/v1/completions", `{"model":"m","prompt":"x"}`, typed(302, "text/html", page, false), 502},
		{"304", chat, chatBody, typed(304, "", "", false), 502},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ep := newEndpoint(t, c.handler)
			r := newRig(t, []string{ep.URL})
			kind := "application/json"
			if c.body == form {
				kind = "multipart/form-data; boundary=b"
			}
			res := r.post(c.path, c.body, "Content-Type", kind)
			body, err := read(res)
			if res.StatusCode != c.status || err != nil {
				t.Fatalf("status %d, %v, want %d: %s", res.StatusCode, err, c.status, body)
			}
			rec := r.record()
			r.idle()
			state := r.pool.Status().Endpoints[0].State
			if c.status == 200 {
				if rec["outcome"] != "ok" || state != "ready" {
					t.Errorf("record %v, endpoint %s", rec, state)
				}
				return
			}
			if rec["outcome"] != "upstream_error" || !strings.Contains(rec["cause"], "no answer of this API") || state != "ejected" {
				t.Errorf("record %v, endpoint %s", rec, state)
			}
			if res.Header.Get("x-should-retry") != "false" || res.Header.Get("x-pointsman-reason") != "upstream_error" || strings.Contains(body, "Log in") {
				t.Errorf("headers %v: %s", res.Header, body)
			}
		})
	}
}

// TestProperStored: a stored response is deleted with or without a body.
func TestProperStored(t *testing.T) {
	ep := newEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			w.WriteHeader(204)
			return
		}
		answerJSON(w, 200, `{"id":"resp_1","object":"response","status":"completed","output":[],"usage":{"input_tokens":1,"output_tokens":1,"total_tokens":2}}`)
	})
	r := newRig(t, []string{ep.URL})
	if _, err := read(r.post("/v1/responses", `{"model":"m","input":"x"}`)); err != nil {
		t.Fatal(err)
	}
	r.record()
	req, err := http.NewRequest("DELETE", r.server.URL+"/v1/responses/resp_1", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := r.server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := read(res); err != nil || res.StatusCode != 204 {
		t.Errorf("status %d, %v", res.StatusCode, err)
	}
	if rec := r.record(); rec["outcome"] != "ok" {
		t.Errorf("record %v", rec)
	}
}

// TestPause: an endpoint that asks for a pause gets one, however it words that, and is not ejected.
func TestPause(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"503": status(503, "later", "Retry-After", "2"), "429": status(429, "later", "Retry-After", "2"), "busy": status(503, busyBody),
	} {
		t.Run(name, func(t *testing.T) {
			bad, good := newEndpoint(t, h), newEndpoint(t, answerOK)
			r := newRig(t, []string{bad.URL, good.URL})
			for range 20 {
				if res := r.post(chat, chatBody); res.StatusCode != 200 {
					t.Errorf("status %d", res.StatusCode)
				} else {
					_, _ = read(res)
				}
			}
			if n := bad.served.Load(); n > 1 {
				t.Errorf("asked %d times within its pause", n)
			}
			for _, e := range r.pool.Status().Endpoints {
				if e.State == "ejected" {
					t.Errorf("%s is ejected: %+v", e.Name, e)
				}
			}
		})
	}
}

// TestRefusedKey: 401 to a key that is the pool's says that the endpoint is of no use, not that the client is at fault.
func TestRefusedKey(t *testing.T) {
	bad, good := newEndpoint(t, status(401, `{"error":"Unauthorized"}`)), newEndpoint(t, answerOK)
	r := newRig(t, []string{bad.URL, good.URL})
	r.pool.SetConfig(pool.Config{Name: "p", APIKey: "k"})
	for range 20 {
		res := r.post(chat, chatBody)
		if _, err := read(res); err != nil || res.StatusCode != 200 {
			t.Errorf("status %d, %v", res.StatusCode, err)
		}
	}
	if n := bad.served.Load(); n > 1 {
		t.Errorf("asked %d times", n)
	}
}
