package acceptance

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// TestEnvoyExample: the configuration that is shipped is one that Envoy takes.
func TestEnvoyExample(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), envoyPath(t), "--mode", "validate", "-c", "../../deploy/envoy/envoy.yaml").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// wordy is a request body of about n bytes.
func wordy(n int) string {
	return `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", n/5) + `"}]}`
}

// TestEnvoyBodies: bodies of any size reach the model server byte for byte, in every body mode.
func TestEnvoyBodies(t *testing.T) {
	envoyPath(t)
	servers, urls := fleet(t, 1)
	got := make(chan string, 16)
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" {
			return // a probe of the gateway
		}
		b, err := io.ReadAll(r.Body)
		if err != nil {
			b = []byte(err.Error())
		}
		got <- string(b)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"at":%q,"usage":{"prompt_tokens":7,"completion_tokens":1}}`, r.Header.Get("x-gateway-destination-endpoint"))
	})
	servers[0].handle.Store(&echo)
	g := gateway(t, list(urls...), "", processor)
	waitReady(t, g, 1)
	for _, mode := range []string{"FULL_DUPLEX_STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "STREAMED"} {
		t.Run(mode, func(t *testing.T) {
			trailers := "trailer_mode: SEND"
			if mode != "FULL_DUPLEX_STREAMED" {
				trailers = "trailer_mode: SKIP"
			}
			response := mode
			if mode == "BUFFERED_PARTIAL" {
				response = "NONE"
			}
			base := envoy(t, urls, g.ExtProc(), "request_body_mode: FULL_DUPLEX_STREAMED", "request_body_mode: "+mode, "response_body_mode: FULL_DUPLEX_STREAMED",
				"response_body_mode: "+response, "trailer_mode: SEND", trailers, "    - name: api\n", "    - name: api\n      per_connection_buffer_limit_bytes: 10000000\n")
			c := client(t, 1)
			for _, n := range []int{1_000, 100_000, 1_000_000, 5_000_000} {
				body := wordy(n)
				res, err := askEnvoy(t, c, base+"/v1/chat/completions", body)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || res.StatusCode != 200 || !strings.Contains(string(text), servers[0].name) {
					t.Fatalf("%d bytes: status %d, %v, %s", n, res.StatusCode, err, text)
				}
				if seen := <-got; seen != body {
					t.Errorf("%d bytes arrived as %d others", len(body), len(seen))
				}
				if res.Header.Get("x-pointsman-request-id") == "" {
					t.Errorf("%d bytes: headers %v", n, res.Header)
				}
			}
		})
	}
	eventually(t, patience, func() string {
		if n := status(t, g).InFlight; n != 0 {
			return fmt.Sprint(n, " requests still booked")
		}
		return ""
	})
}

// TestEnvoyAlias: a model's other name is rewritten, with the right length, in every mode that shows the body before its headers go.
func TestEnvoyAlias(t *testing.T) {
	envoyPath(t)
	servers, urls := fleet(t, 1)
	got := make(chan string, 16)
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" {
			return // a probe of the gateway
		}
		b, err := io.ReadAll(r.Body)
		got <- fmt.Sprintf("%s %d %v", b, r.ContentLength, err)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{}")
	})
	servers[0].handle.Store(&echo)
	g := gateway(t, list(urls...), "", processor+"models: [{name: an-other-name, serves: m}]\n")
	waitReady(t, g, 1)
	for mode, length := range map[string]string{"FULL_DUPLEX_STREAMED": "-1", "BUFFERED": "11"} {
		base := envoy(t, urls, g.ExtProc(), "request_body_mode: FULL_DUPLEX_STREAMED", "request_body_mode: "+mode)
		res, err := askEnvoy(t, client(t, 1), base+"/v1/chat/completions", `{"model":"an-other-name"}`)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 200 {
			t.Fatalf("%s: status %d", mode, res.StatusCode)
		}
		if seen := <-got; seen != `{"model":"m"} `+length+" <nil>" && seen != `{"model":"m"} 13 <nil>` {
			t.Errorf("%s: arrived as %s", mode, seen)
		}
	}
}

// TestEnvoyStream: each event is there before the next one is made.
func TestEnvoyStream(t *testing.T) {
	envoyPath(t)
	servers, urls := fleet(t, 2)
	next := make(chan bool)
	events := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 5 {
			fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%d\"}}]}\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-next
		}
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	})
	for _, s := range servers {
		s.handle.Store(&events)
	}
	g := gateway(t, list(urls...), "", processor)
	waitReady(t, g, 2)
	base := envoy(t, urls, g.ExtProc())
	c := client(t, 1)
	for range 2 {
		res, err := askEnvoy(t, c, base+"/v1/chat/completions", `{"model":"m","stream":true}`)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(res.Body)
		for i := range 5 {
			for lines.Scan() && lines.Text() == "" {
			}
			if !strings.Contains(lines.Text(), fmt.Sprintf(`"content":"%d"`, i)) {
				t.Fatalf("event %d is %q", i, lines.Text())
			}
			next <- true
		}
		rest := ""
		for lines.Scan() {
			rest += lines.Text()
		}
		if !strings.HasSuffix(rest, "data: [DONE]") || strings.Contains(rest, "error") {
			t.Errorf("the end is %q", rest)
		}
		res.Body.Close()
	}
}

// TestEnvoySpread: requests on one kept connection do not stay at one endpoint.
func TestEnvoySpread(t *testing.T) {
	envoyPath(t)
	servers, urls := fleet(t, 2)
	g := gateway(t, list(urls...), "", processor)
	waitReady(t, g, 2)
	base := envoy(t, urls, g.ExtProc())
	c := client(t, 1)
	for i := range 20 {
		res, err := askEnvoy(t, c, base+"/v1/chat/completions", fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"%d%s"}]}`, i, strings.Repeat(" word", 1000)))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	if a, b := servers[0].posted.Load(), servers[1].posted.Load(); a < 5 || b < 5 {
		t.Errorf("20 different prompts went %d to %d", a, b)
	}
}

// TestEnvoyDeadEndpoint: a pick whose first endpoint refuses connections is served by the next one, and the booking follows.
func TestEnvoyDeadEndpoint(t *testing.T) {
	envoyPath(t)
	servers, urls := fleet(t, 1)
	dead := "http://" + loopback.Free(t)
	g := gateway(t, list(dead, urls[0]), "", processor)
	base := envoy(t, []string{dead, urls[0]}, g.ExtProc())
	waitReady(t, g, 1)
	c := client(t, 1)
	for range 5 {
		res, err := askEnvoy(t, c, base+"/v1/chat/completions", wordy(1000))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 200 || res.Header.Get("x-pointsman-endpoint") != servers[0].name {
			t.Errorf("status %d, served by %q", res.StatusCode, res.Header.Get("x-pointsman-endpoint"))
		}
	}
}

// TestEnvoyCut: how a stream that breaks off ends for the client, by how it broke.
func TestEnvoyCut(t *testing.T) {
	envoyPath(t)
	servers, urls := fleet(t, 1)
	g := gateway(t, list(urls...), "", processor)
	waitReady(t, g, 1)
	base := envoy(t, urls, g.ExtProc())
	const event = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n"
	for _, c := range []struct {
		name  string
		reset bool
	}{{"clean end", false}, {"connection broke", true}} {
		t.Run(c.name, func(t *testing.T) {
			cut := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/v1/chat/completions" {
					return
				}
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, event)
				_ = http.NewResponseController(w).Flush()
				if c.reset {
					time.Sleep(100 * time.Millisecond)
					panic(http.ErrAbortHandler)
				}
			})
			servers[0].handle.Store(&cut)
			res, err := askEnvoy(t, client(t, 1), base+"/v1/chat/completions", `{"model":"m","stream":true}`)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(res.Body)
			res.Body.Close()
			told := strings.Contains(string(text), `"code":"upstream_eof"`)
			if told == c.reset || (err != nil) != c.reset {
				t.Errorf("the client gets %q, then %v", text, err)
			}
			eventually(t, patience, func() string {
				if n := status(t, g).InFlight; n != 0 {
					return fmt.Sprint(n, " requests still booked")
				}
				return ""
			})
		})
	}
}
