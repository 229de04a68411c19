package proxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/klauspost/compress/zstd"

	"pointsman.dev/pointsman/internal/pool"
)

// echo answers with what the endpoint received.
func echo(got chan<- *http.Request) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		seen := r.Clone(context.WithoutCancel(r.Context())) // the server goes on with r
		seen.Body = r.Body
		got <- seen
		answerOK(w, r)
	}
}

func bodyOf(t *testing.T, r *http.Request) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestBytesPassUnchanged sends bodies that a decoder would be tempted to rewrite.
func TestBytesPassUnchanged(t *testing.T) {
	got := make(chan *http.Request, 1)
	ep := newEndpoint(t, echo(got))
	r := newRig(t, []string{ep.URL})
	for _, body := range []string{
		chatBody,
		` { "messages" : [ ] , "seed" : 18446744073709551615, "model":"m" , "x":1.0e400, "y" : "\ud800 \u00e9 é", "z": [ 1 ,2 ] } `,
		`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("long ", 300_000) + `"}]}`,
	} {
		res := r.post(chat+"?a=b&c=%20d", body)
		if out, err := read(res); err != nil || res.StatusCode != 200 {
			t.Fatalf("status %d, %v: %s", res.StatusCode, err, out)
		}
		in := <-got
		if b := bodyOf(t, in); b != body {
			t.Errorf("endpoint got %.80q, want %.80q", b, body)
		}
		if in.ContentLength != int64(len(body)) || in.URL.RawQuery != "a=b&c=%20d" || in.URL.Path != chat {
			t.Errorf("length %d, URL %v", in.ContentLength, in.URL)
		}
		if in.Host != ep.name || in.Header.Get("Accept-Encoding") != "identity" || in.Header.Get("X-Forwarded-For") != "127.0.0.1" {
			t.Errorf("host %q, headers %v", in.Host, in.Header)
		}
	}
	r.idle()
}

// TestAlias replaces the top-level model value and nothing else.
func TestAlias(t *testing.T) {
	got := make(chan *http.Request, 1)
	ep := newEndpoint(t, echo(got))
	r := newRig(t, []string{ep.URL})
	const body = `{"messages":[{"role":"user","content":"the \"model\":\"fast\" stays","model":"fast"}], "model" : "fast" ,"seed":1}`
	const want = `{"messages":[{"role":"user","content":"the \"model\":\"fast\" stays","model":"fast"}], "model" : "m" ,"seed":1}`
	res := r.post(chat, body)
	if _, err := read(res); err != nil || res.StatusCode != 200 {
		t.Fatalf("status %d, %v", res.StatusCode, err)
	}
	in := <-got
	if b := bodyOf(t, in); b != want || in.ContentLength != int64(len(want)) {
		t.Errorf("endpoint got %d bytes %s", in.ContentLength, b)
	}
	if rec := r.record(); rec["model"] != "fast" || rec["served_model"] != "m" {
		t.Errorf("record %v", rec)
	}
}

func TestChunkedUpload(t *testing.T) {
	got := make(chan *http.Request, 1)
	ep := newEndpoint(t, echo(got))
	r := newRig(t, []string{ep.URL})
	_, br := r.raw("POST " + chat + " HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n" +
		fmt.Sprintf("5\r\n%s\r\n%x\r\n%s\r\n0\r\nX-T: v\r\n\r\n", chatBody[:5], len(chatBody)-5, chatBody[5:]))
	res, err := http.ReadResponse(br, nil)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%v, %v", res, err)
	}
	if in := <-got; in.ContentLength != int64(len(chatBody)) || bodyOf(t, in) != chatBody {
		t.Errorf("endpoint got %d bytes", in.ContentLength)
	}
}

func TestZstdRequest(t *testing.T) {
	got := make(chan *http.Request, 1)
	ep := newEndpoint(t, echo(got))
	r := newRig(t, []string{ep.URL}, func(c *Config) { c.MaxBody = 1 << 20 })
	pack := func(s string, opts ...zstd.EOption) string {
		z, err := zstd.NewWriter(nil, opts...)
		if err != nil {
			t.Fatal(err)
		}
		return string(z.EncodeAll([]byte(s), nil))
	}
	packed := pack(chatBody)
	res := r.post(chat, packed, "Content-Encoding", "zstd")
	if _, err := read(res); err != nil || res.StatusCode != 200 {
		t.Fatalf("status %d, %v", res.StatusCode, err)
	}
	if in := <-got; bodyOf(t, in) != packed || in.Header.Get("Content-Encoding") != "zstd" {
		t.Error("a compressed body did not pass as it came")
	}
	for name, c := range map[string]struct {
		body   string
		status int
	}{
		"bomb": {pack(`{"model":"m","x":"` + strings.Repeat("a", 64<<20) + `"}`), 413}, "not zstd": {chatBody, 400}, "cut": {packed[:len(packed)-5], 400},
		"a window of 512 MiB": {"\x28\xb5\x2f\xfd\x00\x98" + packed, 400},
	} {
		res := r.post(chat, c.body, "Content-Encoding", "zstd")
		if out, _ := read(res); res.StatusCode != c.status {
			t.Errorf("%s: status %d, want %d: %s", name, res.StatusCode, c.status, out)
		}
	}
	if n := ep.served.Load(); n != 1 {
		t.Errorf("the endpoint served %d", n)
	}
}

func TestGzipRequest(t *testing.T) {
	got := make(chan *http.Request, 1)
	ep := newEndpoint(t, echo(got))
	r := newRig(t, []string{ep.URL}, func(c *Config) { c.MaxBody = 1 << 20 })
	pack := func(s string) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = io.WriteString(z, s)
		z.Close()
		return b.String()
	}
	packed := pack(chatBody)
	res := r.post(chat, packed, "Content-Encoding", "gzip")
	if _, err := read(res); err != nil || res.StatusCode != 200 {
		t.Fatalf("status %d, %v", res.StatusCode, err)
	}
	if in := <-got; bodyOf(t, in) != packed || in.Header.Get("Content-Encoding") != "gzip" {
		t.Error("a compressed body did not pass as it came")
	}
	for name, c := range map[string]struct {
		body, coding string
		status       int
	}{
		"bomb": {pack(`{"model":"m","x":"` + strings.Repeat("a", 4<<20) + `"}`), "gzip", 413}, "not gzip": {chatBody, "gzip", 400},
		"cut": {packed[:len(packed)-9], "gzip", 400}, "unknown coding": {chatBody, "br", 415}, "alias": {pack(strings.Replace(chatBody, `"m"`, `"fast"`, 1)), "gzip", 415},
	} {
		res := r.post(chat, c.body, "Content-Encoding", c.coding)
		if out, _ := read(res); res.StatusCode != c.status {
			t.Errorf("%s: status %d, want %d: %s", name, res.StatusCode, c.status, out)
		}
	}
	if n := ep.served.Load(); n != 1 {
		t.Errorf("the endpoint served %d", n)
	}
}

func TestModels(t *testing.T) {
	ep := newEndpoint(t, answerOK)
	r := newRig(t, []string{ep.URL})
	get := func(method, path string) (int, string, http.Header) {
		req, err := http.NewRequest(method, r.server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := r.server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := read(res)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, body, res.Header
	}
	status, body, _ := get("GET", "/v1/models")
	var list struct {
		Object string
		Data   []struct {
			ID, Object  string
			MaxModelLen int `json:"max_model_len"`
		}
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil || status != 200 || list.Object != "list" || len(list.Data) != 3 {
		t.Fatalf("status %d, %v, %s", status, err, body)
	}
	if list.Data[0].ID != "fast" || list.Data[1].ID != "m" || list.Data[1].MaxModelLen != 4096 || list.Data[2].ID != "org/model-b" || list.Data[2].Object != "model" {
		t.Errorf("list %s", body)
	}
	for path, want := range map[string]int{"/v1/models/m": 200, "/v1/models/org/model-b": 200, "/v1/models/org%2Fmodel-b": 200, "/v1/models/org/model-c": 404, "/v1/models/..%2f..%2fmetrics": 404} {
		if got, card, _ := get("GET", path); got != want || got == 200 && !strings.Contains(card, `"object":"model"`) {
			t.Errorf("%s: status %d, want %d: %s", path, got, want, card)
		}
	}
	if _, refusal, _ := get("GET", "/v1/models/org/model-c"); !strings.Contains(refusal, "Did you mean `org/model-b`?") {
		t.Errorf("no near miss: %s", refusal)
	}
	status, body, h := get("HEAD", "/v1/models")
	if status != 200 || body != "" || h.Get("Content-Length") == "0" || h.Get("Content-Length") == "" {
		t.Errorf("HEAD: status %d, body %q, %v", status, body, h)
	}
	if status, _, h := get("DELETE", "/v1/models"); status != 405 || h.Get("Allow") != "GET, HEAD" {
		t.Errorf("DELETE: status %d, Allow %q", status, h.Get("Allow"))
	}
	if n := ep.served.Load(); n != 0 {
		t.Errorf("the endpoint was asked %d times", n)
	}
}

// TestPrivatePaths sends disguised control paths as raw bytes; none may reach an endpoint.
func TestPrivatePaths(t *testing.T) {
	ep := newEndpoint(t, answerOK)
	r := newRig(t, []string{ep.URL})
	paths := []string{"/metrics", "/sleep?level=1", "/v1/../sleep", "/v1/chat/completions/../../../sleep", "//sleep", "/./sleep", "/%73leep", "/v1/%2e%2e/sleep",
		"/v1/chat/completions/%2e%2e/x", "/v1/chat/completions/", "/V1/CHAT/COMPLETIONS", "/v1/chat/completions;/../../sleep", "/v1//chat/completions", "/v1/chat%2fcompletions",
		"/v1/load_lora_adapter", "/reset_prefix_cache", "/server_info", "/collective_rpc", "/v1/responses/..", "/v1/responses/%2e%2e%2fsleep", "/health", "/version", "/docs", "/invocations",
		"http://gw/sleep", "http://gw//v1/../sleep"}
	for _, method := range []string{"POST", "GET"} {
		for _, p := range paths {
			_, br := r.raw(method + " " + p + " HTTP/1.1\r\nHost: gw\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
			res, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatalf("%s: %v", p, err)
			}
			body, _ := read(res)
			if res.StatusCode != 404 || !strings.Contains(body, `"error"`) {
				t.Errorf("%s %s: status %d: %s", method, p, res.StatusCode, body)
			}
		}
	}
	if n := ep.served.Load(); n != 0 {
		t.Errorf("%d requests reached the endpoint", n)
	}
}

// TestUnknownPathIsRecorded: the log says which path a client calls that is none, and nothing of its query.
func TestUnknownPathIsRecorded(t *testing.T) {
	ep := newEndpoint(t, answerOK)
	r := newRig(t, []string{ep.URL})
	for path, want := range map[string]string{"/api/chat?key=secret": "/api/chat", "/v1/chat/completions": "", "/v1/%0asleep": "/v1/..."} {
		_, br := r.raw("GET " + path + " HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n")
		if _, err := http.ReadResponse(br, nil); err != nil {
			t.Fatal(err)
		}
		if rec := r.record(); rec["unknown_path"] != want || (rec["path"] == "") != (want != "") {
			t.Errorf("%s: record %v, want %q", path, rec, want)
		}
	}
}

func TestMultipartModel(t *testing.T) {
	got := make(chan *http.Request, 1)
	ep := newEndpoint(t, echo(got))
	r := newRig(t, []string{ep.URL})
	form := func(model string) (string, string) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		f, _ := w.CreateFormFile("file", "a.wav")
		_, _ = f.Write(randomBytes(100_000))
		_ = w.WriteField("model", model)
		w.Close()
		return b.String(), w.FormDataContentType()
	}
	body, contentType := form("m")
	res := r.post("/v1/audio/transcriptions", body, "Content-Type", contentType)
	if out, err := read(res); err != nil || res.StatusCode != 200 {
		t.Fatalf("status %d, %v: %s", res.StatusCode, err, out)
	}
	if in := <-got; bodyOf(t, in) != body {
		t.Error("the form did not pass unchanged")
	}
	body, contentType = form("fast")
	if _, err := read(r.post("/v1/audio/transcriptions", body, "Content-Type", contentType)); err != nil {
		t.Fatal(err)
	}
	in := <-got
	if err := in.ParseMultipartForm(1 << 20); err != nil || in.FormValue("model") != "m" {
		t.Errorf("after the alias: model %q, %v", in.FormValue("model"), err)
	}
	body, contentType = form("nobody")
	if res := r.post("/v1/audio/transcriptions", body, "Content-Type", contentType); res.StatusCode != 404 {
		t.Errorf("unknown model: status %d", res.StatusCode)
	}
}

// TestRealtime passes a WebSocket in both directions, books it, and gives it back, whichever side closes.
func TestRealtime(t *testing.T) {
	closed := make(chan struct{}, 1)
	ep := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		for {
			kind, msg, err := c.Read(context.Background())
			if err != nil {
				closed <- struct{}{}
				return
			}
			if string(msg) == "bye" {
				c.Close(websocket.StatusNormalClosure, "done")
				return
			}
			if err := c.Write(context.Background(), kind, append([]byte("echo "), msg...)); err != nil {
				return
			}
		}
	}))
	t.Cleanup(ep.Close)
	r := newRig(t, []string{ep.URL})
	for _, last := range []string{"", "bye"} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c, _, err := websocket.Dial(ctx, strings.Replace(r.server.URL, "http", "ws", 1)+"/v1/realtime?model=m", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, msg, err := c.Read(ctx); err != nil || string(msg) != "echo hello" {
			t.Fatalf("%q, %v", msg, err)
		}
		if n := r.inFlight(); n != 1 {
			t.Errorf("%d in flight while the socket is open", n)
		}
		if last == "" {
			c.CloseNow()
			<-closed
		} else {
			_ = c.Write(ctx, websocket.MessageText, []byte(last))
			_, _, _ = c.Read(ctx)
			c.CloseNow()
		}
		if rec := r.record(); rec["outcome"] != "ok" || rec["status"] != "101" {
			t.Errorf("record %v", rec)
		}
		r.idle()
	}
	res, err := http.Get(r.server.URL + "/v1/realtime")
	if err != nil || res.StatusCode != 400 {
		t.Errorf("no model among three: %v, %v", res, err)
	}
}

// TestUpgradeElsewhere: no other path may leave HTTP, and h2c is not an upgrade.
func TestUpgradeElsewhere(t *testing.T) {
	got := make(chan *http.Request, 2)
	ep := newEndpoint(t, echo(got))
	r := newRig(t, []string{ep.URL})
	for _, to := range []string{"websocket", "h2c"} {
		_, br := r.raw(rawPost(chatBody, "Connection: Upgrade, X-Secret", "Upgrade: "+to, "X-Secret: 1"))
		res, err := http.ReadResponse(br, nil)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("%s: %v, %v", to, res, err)
		}
		if h := (<-got).Header; h.Get("Upgrade") != "" || h.Get("X-Secret") != "" || h.Get("Connection") != "" {
			t.Errorf("%s: endpoint got %v", to, h)
		}
	}
}

// TestStoredResponse sends follow-ups of a stored response to the endpoint that has it.
func TestStoredResponse(t *testing.T) {
	answer := func(id string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			answerJSON(w, 200, `{"id":"`+id+`","object":"response","status":"completed","output":[],"usage":{"input_tokens":1,"output_tokens":1}}`)
		}
	}
	a, b := newEndpoint(t, answer("resp_a")), newEndpoint(t, answer("resp_b"))
	r := newRig(t, []string{a.URL, b.URL})
	for a.served.Load() == 0 || b.served.Load() == 0 {
		if _, err := read(r.post("/v1/responses", `{"model":"m","input":"hi"}`)); err != nil {
			t.Fatal(err)
		}
	}
	before := a.served.Load()
	for range 6 {
		if _, err := read(r.post("/v1/responses", `{"model":"m","input":"more","previous_response_id":"resp_b"}`)); err != nil {
			t.Fatal(err)
		}
		res, err := http.Get(r.server.URL + "/v1/responses/resp_b")
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("%v, %v", res, err)
		}
		res.Body.Close()
	}
	if n := a.served.Load(); n != before {
		t.Errorf("%d follow-ups went to the other endpoint", n-before)
	}
	if res, err := http.Get(r.server.URL + "/v1/responses/resp_x"); err != nil || res.StatusCode != 404 {
		t.Errorf("unknown response: %v, %v", res, err)
	}
	r.pool.SetConfig(pool.Config{Name: "p"})
}

// TestHeadersAtOnce: the head of a stream reaches the client before its first event, each event in the write that it was.
func TestHeadersAtOnce(t *testing.T) {
	next := make(chan string)
	ep := newEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
		answerStream(w)
		for s := range next {
			_, _ = io.WriteString(w, s)
			_ = http.NewResponseController(w).Flush()
		}
	})
	r := newRig(t, []string{ep.URL})
	res := r.post(chat, streamBody)
	defer res.Body.Close()
	if res.StatusCode != 200 || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("%v", res)
	}
	br := bufio.NewReader(res.Body)
	for i := range 5 {
		next <- delta(fmt.Sprint(i))
		if line, err := br.ReadString('\n'); err != nil || line != strings.SplitAfter(delta(fmt.Sprint(i)), "\n")[0] {
			t.Fatalf("event %d: %q, %v", i, line, err)
		}
		if _, err := br.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	next <- finishStop
	close(next)
	if rest, err := io.ReadAll(br); err != nil || string(rest) != finishStop {
		t.Errorf("%q, %v", rest, err)
	}
}
