package acceptance

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/app"
	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// counter counts what engines executed: every request whose body they took in whole and did not refuse. A request is known by
// its body and by which try of its client it is.
type counter struct {
	t        *testing.T
	mu       sync.Mutex
	sent     map[[32]byte]bool
	executed map[string]int
	offered  int // bodies that reached an engine, refused ones too
}

func newCounter(t *testing.T) *counter {
	return &counter{t: t, sent: map[[32]byte]bool{}, executed: map[string]int{}}
}

// note records a body that a client is about to send.
func (c *counter) note(body string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent[sha256.Sum256([]byte(body))] = true
}

func try(sum [32]byte, retry string) string { return fmt.Sprintf("%x/%s", sum[:8], retry) }

// take reads an engine's request and returns what the request is known by, "" when it is not whole.
func (c *counter) take(r *http.Request) string {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(body)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offered++
	if !c.sent[sum] {
		c.t.Errorf("an engine got %d bytes that nobody sent: %.80q", len(body), body)
	}
	return try(sum, r.Header.Get("X-Stainless-Retry-Count"))
}

func (c *counter) execute(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.executed[key]++
}

func (c *counter) times(body, retry string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.executed[try(sha256.Sum256([]byte(body)), retry)]
}

// deed is what an engine does with a request that it has read.
type deed struct {
	name   string
	refuse bool // it did not execute it
	do     func(w http.ResponseWriter, r *http.Request, stream bool)
}

func refusing(status int, body string, header ...string) func(http.ResponseWriter, *http.Request, bool) {
	return func(w http.ResponseWriter, _ *http.Request, _ bool) {
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// raw plays on the bare connection and closes it.
func raw(play func(*wire, *dialect, bool)) func(http.ResponseWriter, *http.Request, bool) {
	return func(w http.ResponseWriter, r *http.Request, stream bool) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		d := chatDialect()
		play(&wire{Conn: conn}, &d, stream)
	}
}

const (
	busyWords  = `{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}`
	drainWords = `{"error":{"message":"cannot schedule new futures after shutdown","type":"InternalServerError","param":null,"code":500}}`
)

// begun sends the first bytes of an answer.
func begun(w *wire, d *dialect, stream bool) {
	if stream {
		w.say(streamHead)
		w.chunks(d.events...)
		return
	}
	w.say(sized(len(d.whole)) + d.whole[:len(d.whole)/2])
}

func wholeAnswer(w *wire, d *dialect, stream bool) {
	if stream {
		w.say(streamHead)
		w.chunks(append(append([]string{}, d.events...), d.finish...)...)
		w.chunks("data: [DONE]\n\n")
		w.say(lastChunk)
		return
	}
	w.say(sized(len(d.whole)) + d.whole)
}

// deeds are everything that engines do to requests.
func deeds() []deed {
	return []deed{
		{name: "answers", do: raw(wholeAnswer)}, // and closes a connection that the gateway believes it may use again
		{name: "answers and keeps the connection", do: func(w http.ResponseWriter, _ *http.Request, stream bool) {
			d := chatDialect()
			w.Header().Set("Content-Type", "application/json")
			text := d.whole
			if stream {
				w.Header().Set("Content-Type", "text/event-stream")
				text = d.sofar() + strings.Join(d.finish, "") + "data: [DONE]\n\n"
			}
			_, _ = io.WriteString(w, text)
		}},
		{name: "resets before the head", do: raw(func(w *wire, _ *dialect, _ bool) { w.reset() })},
		{name: "closes before the head", do: raw(func(*wire, *dialect, bool) {})},
		{name: "half a head", do: raw(func(w *wire, _ *dialect, _ bool) { w.say("HTTP/1.1 200 OK\r\nContent-Ty") })},
		{name: "resets after the head", do: raw(func(w *wire, d *dialect, stream bool) {
			if stream {
				w.say(streamHead)
			} else {
				w.say(sized(len(d.whole)))
			}
			w.reset()
		})},
		{name: "resets in the body", do: raw(func(w *wire, d *dialect, stream bool) { begun(w, d, stream); w.settle(); w.reset() })},
		{name: "closes in the body", do: raw(begun)},
		{name: "hangs", do: raw(func(w *wire, _ *dialect, _ bool) { w.hang() })},
		{name: "hangs in the body", do: raw(func(w *wire, d *dialect, stream bool) { begun(w, d, stream); w.hang() })},
		{name: "500", do: refusing(500, `{"error":{"message":"boom"}}`)},
		{name: "503 without a word", do: refusing(503, `{"error":{"message":"down"}}`)},
		{name: "409", do: refusing(409, `{"error":{"message":"conflict"}}`)},
		{name: "400", do: refusing(400, `{"error":{"message":"temperature"}}`)},
		{name: "408", do: refusing(408, `{"error":{"message":"slow"}}`)},
		{name: "a page", do: refusing(200, "<html>login</html>", "Content-Type", "text/html")},
		{name: "429", refuse: true, do: refusing(429, `{"error":{"message":"slow down"}}`)},
		{name: "429 with Retry-After", refuse: true, do: refusing(429, `{"error":{"message":"slow down"}}`, "Retry-After", "7")},
		{name: "503 with Retry-After", refuse: true, do: refusing(503, "later", "Retry-After", "7")},
		{name: "busy", refuse: true, do: refusing(503, busyWords)},
		{name: "drains", refuse: true, do: refusing(500, drainWords)},
	}
}

// engineOf starts an engine that does what next says.
func (c *counter) engineOf(t *testing.T, next func() *deed) *scripted {
	s := newScripted(t, nil)
	handle := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		stream := r.Header.Get("X-Stream") != ""
		key := c.take(r)
		if key == "" {
			return
		}
		d := next()
		if !d.refuse {
			c.execute(key)
		}
		d.do(w, r, stream)
	})
	s.handle.Store(&handle)
	return s
}

// tries sends a body as the official clients do: again, twice at most, after a connection error and after 408, 409, 429 and 5xx,
// unless x-should-retry says no.
func (c *counter) tries(t *testing.T, g *app.Gateway, cl *http.Client, body string, stream bool) {
	c.note(body)
	for n := range 3 {
		retry := strconv.Itoa(n)
		r, err := http.NewRequest("POST", g.API()+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("X-Stainless-Retry-Count", retry)
		if stream {
			r.Header.Set("X-Stream", "1")
		}
		res, err := cl.Do(r)
		status, final := 0, ""
		if err == nil {
			status, final = res.StatusCode, res.Header.Get("X-Should-Retry")
			_, err = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		done := c.times(body, retry)
		again := status >= 500 || status == 408 || status == 409 || status == 429
		switch {
		case done > 1:
			t.Errorf("try %d was executed %d times: status %d, %v", n, done, status, err)
		case again && done > 0 && final != "false":
			t.Errorf("status %d of a request that was executed lacks x-should-retry: false", status)
		}
		if err == nil && (!again || final == "false") || err != nil && status != 0 {
			return
		}
	}
}

// deaf is an address that takes no connection and refuses none: its backlog is full.
func deaf(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err = syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	for range 5 {
		c, err := net.DialTimeout("tcp", addr, 200*time.Millisecond)
		if err != nil {
			return "http://" + addr
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Fatal("the address still takes connections")
	return ""
}

// TestExecutedOnce: among engines that fail, refuse, hang, close, are deaf or gone, in any order, with clients that try again,
// while engines end and the gateway drains, no request is executed twice, no body arrives changed, and clients are told which failures
// they may try again.
func TestExecutedOnce(t *testing.T) {
	seeds := 24
	if testing.Short() {
		seeds = 8
	}
	c := newCounter(t) // of all seeds: the port of an engine that ended may be the next one's
	parallel(seeds, 12, func(i int) {
		t.Run(fmt.Sprint("seed=", i), func(t *testing.T) { executeOnce(t, c, uint64(i)) })
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Logf("%d bodies, %d executions, %d arrivals at engines", len(c.sent), len(c.executed), c.offered)
	if len(c.executed) < len(c.sent)/2 {
		t.Error("too few were executed: this proves nothing")
	}
}

func executeOnce(t *testing.T, c *counter, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex
	all := deeds()
	next := func() *deed {
		mu.Lock()
		defer mu.Unlock()
		if rnd.IntN(3) == 0 {
			return &all[1]
		}
		return &all[rnd.IntN(len(all))]
	}
	engines := []*scripted{c.engineOf(t, next), c.engineOf(t, next), c.engineOf(t, next)}
	urls := []string{engines[0].URL, engines[1].URL, engines[2].URL, "http://" + loopback.Free(t)}
	if seed%4 == 0 {
		urls = append(urls, deaf(t))
	}
	g := gateway(t, list(urls...), "", "limit: 1500ms\nidle: 700ms\n")
	waitReady(t, g, 3)
	cl := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}, Timeout: 20 * time.Second}
	t.Cleanup(cl.CloseIdleConnections)
	const requests = 40
	parallel(requests, 8, func(i int) {
		if i == requests*3/4 {
			switch seed % 3 {
			case 0:
				go g.Drain(context.Background(), 100*time.Millisecond, 300*time.Millisecond)
			case 1: // its process ends
				engines[0].Listener.Close()
				engines[0].CloseClientConnections()
			}
		}
		size := []int{20, 3000, 300_000}[i%3]
		body := fmt.Sprintf(`{"model":"m","stream":%v,"messages":[{"role":"user","content":"%s"}]}`, i%2 == 0, words(int(seed)*1000+i, size))
		c.tries(t, g, cl, body, i%2 == 0)
	})
}

// TestRetriedOrFinal is the table: what is tried at another endpoint, what is not, and what the client is told when none is left.
func TestRetriedOrFinal(t *testing.T) {
	for _, stream := range []bool{false, true} {
		for _, d := range deeds() {
			t.Run(fmt.Sprintf("%s/stream=%v", d.name, stream), func(t *testing.T) {
				t.Parallel()
				retriedOrFinal(t, &d, stream)
			})
		}
	}
}

func retriedOrFinal(t *testing.T, d *deed, stream bool) {
	c := newCounter(t)
	bad := []*scripted{c.engineOf(t, func() *deed { return d }), c.engineOf(t, func() *deed { return d })}
	limit := "1m" // more than an answer takes on any machine
	if strings.HasPrefix(d.name, "hangs") {
		limit = "600ms"
	}
	g := gateway(t, list(bad[0].URL, bad[1].URL), "", "limit: "+limit+"\n")
	waitReady(t, g, 2)
	body := fmt.Sprintf(`{"model":"m","stream":%v,"messages":[{"role":"user","content":"hello"}]}`, stream)
	c.note(body)
	r, err := http.NewRequest("POST", g.API()+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if stream {
		r.Header.Set("X-Stream", "1")
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	want := 1
	if d.refuse {
		want = 2 // everybody was asked
	}
	if n := int(bad[0].served.Load() + bad[1].served.Load()); c.offered != want {
		t.Errorf("it was offered %d times (%d calls), want %d", c.offered, n, want)
	}
	final := res.Header.Get("X-Should-Retry")
	if again := res.StatusCode >= 500 || res.StatusCode == 429 || res.StatusCode == 408 || res.StatusCode == 409; again && (final == "false") == d.refuse {
		t.Errorf("status %d, x-should-retry %q, refused: %v", res.StatusCode, final, d.refuse)
	}
	if strings.Contains(d.name, "Retry-After") && res.Header.Get("Retry-After") != "7" {
		t.Errorf("Retry-After is %q", res.Header.Get("Retry-After"))
	}
}

// TestRetryAfterIsHonoured: an endpoint that asked for a pause gets nothing while it lasts and another is there.
func TestRetryAfterIsHonoured(t *testing.T) {
	t.Parallel()
	c := newCounter(t)
	all := deeds()
	asked := make(chan time.Time, 1000)
	said := false
	paused := c.engineOf(t, func() *deed {
		asked <- time.Now()
		if !said {
			said = true
			return &deed{refuse: true, do: refusing(429, "{}", "Retry-After", "2")}
		}
		return &all[1]
	})
	other := c.engineOf(t, func() *deed { return &all[1] })
	g := gateway(t, list(paused.URL, other.URL), "", "")
	waitReady(t, g, 2)
	cl := client(t, 4)
	n := 0
	send := func() {
		n++
		body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"%s"}]}`, words(n, 300))
		c.note(body)
		if a := post(cl, g, "/v1/chat/completions", body); a.status != 200 {
			t.Errorf("status %d: %s", a.status, a.body)
		}
	}
	times := func(want int, why string) {
		eventually(t, patience, func() string {
			send()
			return unless(len(asked) >= want, why)
		})
	}
	times(1, "it was never asked")
	before := other.posted.Load()
	times(2, "nothing after its pause")
	if pause := (<-asked).Sub(<-asked).Abs(); pause < 2*time.Second {
		t.Errorf("it got its next request %v after it had asked for a pause of 2 s", pause)
	}
	if n := other.posted.Load() - before; n < 10 {
		t.Errorf("the other one got %d requests meanwhile", n)
	}
}
