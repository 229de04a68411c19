package vllmsim

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseFault(t *testing.T) {
	for spec, want := range map[string]Fault{
		"reset":              {Kind: FaultReset, After: -1},
		"early-end;after=3":  {Kind: FaultEarlyEnd, After: 3},
		"cut; after=0":       {Kind: FaultCut, After: 0},
		"500":                {Kind: FaultStatus, Status: 500, After: -1},
		"503;retry-after=2":  {Kind: FaultStatus, Status: 503, After: -1, RetryAfter: 2 * time.Second},
		"slow=1.5s;count=2":  {Kind: FaultSlow, After: -1, Delay: 1500 * time.Millisecond, Count: 2},
		"slowdown=10;for=5s": {Kind: FaultSlowdown, After: -1, Factor: 10, For: 5 * time.Second},
	} {
		got, err := ParseFault(spec)
		if err != nil || got != want {
			t.Errorf("ParseFault(%q) = %+v, %v; want %+v", spec, got, err, want)
		}
	}
	for spec, want := range map[string]string{
		"explode":     `parsing fault "explode": unknown fault "explode", known: 400..599 `,
		"200":         `parsing fault "200": status must be 400 to 599`,
		"slow":        `parsing fault "slow": time: invalid duration ""`,
		"slowdown=0":  `parsing fault "slowdown=0": factor "0": must be above 0`,
		"reset=3":     `parsing fault "reset=3": reset takes no value`,
		"reset;by=me": `parsing fault "reset;by=me": unknown option "by", known: after, count, for, retry-after`,
	} {
		if _, err := ParseFault(spec); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("ParseFault(%q): error %v, want %s", spec, err, want)
		}
	}
}

func FuzzParseFault(f *testing.F) {
	for _, s := range []string{"reset", "slow=2s", "503;retry-after=1;count=2", "slowdown=1e3;for=1h", ";;=;"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		got, err := ParseFault(spec)
		if err == nil && got.Kind == "" {
			t.Errorf("ParseFault(%q) accepted no kind", spec)
		}
	})
}

// TestRequestFaults: a fault in the header strikes that request alone.
func TestRequestFaults(t *testing.T) {
	bubble(t, tiny(), func(f *fixture) {
		st := f.open(chatPath, streamBody(20), FaultHeader, "early-end;after=4")
		f.want("frames before the early end", len(st.all()), 4)
		f.want("it looks like a clean end", st.err, io.EOF)

		st = f.open(chatPath, streamBody(20), FaultHeader, "cut;after=4")
		f.want("frames before the cut", len(st.all()), 4)
		f.want("the last chunk is missing", st.err, io.ErrUnexpectedEOF)

		st = f.open(chatPath, streamBody(20), FaultHeader, "hang;after=4")
		time.Sleep(time.Hour)
		f.want("frames before the hang", len(st.frames), 4)
		st.cancel()

		begin := time.Now()
		st = f.open(chatPath, streamBody(20), FaultHeader, "slow=2s")
		f.want("headers after", time.Since(begin), 2*time.Second)
		f.want("frames", len(st.all()), 23)

		resp, cancel, err := f.post(chatPath, streamBody(20), FaultHeader, "503;retry-after=1.5")
		if err != nil {
			t.Fatal(err)
		}
		f.want("status", resp.StatusCode, http.StatusServiceUnavailable)
		f.want("retry-after", resp.Header.Get("Retry-After"), "2")
		_ = resp.Body.Close()
		cancel()

		for _, spec := range []string{"reset", "cut", "reset;after=0"} {
			_, _, err = f.post(chatPath, `{"max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`, FaultHeader, spec)
			f.want(spec+" before the headers fails", err != nil, true)
		}
		f.want("faulted", f.s.Stats().Faulted, int64(8))
		time.Sleep(time.Second)
		f.want("in flight", f.s.Stats().InFlight, int64(0))
		f.want("running", f.gauge("vllm:num_requests_running"), 0.0)
		code, _ := f.call(chatPath, `{"max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`)
		f.want("the next request", code, http.StatusOK)
	})
}

// TestServerFaults: faults by the endpoint, with a count, a time, and an end.
func TestServerFaults(t *testing.T) {
	one := `{"max_tokens":20,"messages":[{"role":"user","content":"hi"}]}`
	bubble(t, tiny(), func(f *fixture) {
		arm := func(body string) {
			code, reply := f.call("/vllmsim/fault", body)
			f.want("arming "+body+": "+reply, code, http.StatusOK)
		}
		took := func() time.Duration {
			begin := time.Now()
			f.call(chatPath, one)
			return time.Since(begin)
		}
		normal := took()
		arm(`{"fault":"slowdown=10","for":"10s"}`)
		if slow := took(); slow < 9*normal || slow > 11*normal {
			t.Errorf("10 times slower: %v after %v", slow, normal)
		}
		time.Sleep(10 * time.Second)
		f.want("time after the slowdown", took(), normal)

		arm(`{"fault":"500","count":2}`)
		for i, want := range []int{500, 500, 200} {
			code, _ := f.call(chatPath, one)
			f.want(fmt.Sprint("request ", i), code, want)
		}

		arm(`{"fault":"slow-metrics=2s","for":"1m"}`)
		begin := time.Now()
		f.get("/metrics")
		f.want("/metrics took", time.Since(begin), 2*time.Second)
		time.Sleep(time.Minute)

		arm(`{"fault":"freeze-metrics"}`)
		frozen := f.gauge("vllm:generation_tokens_total")
		f.call(chatPath, one)
		f.want("frozen counter", f.gauge("vllm:generation_tokens_total"), frozen)
		arm(`{"fault":"none"}`)
		f.want("counter after that", f.gauge("vllm:generation_tokens_total"), frozen+20)

		arm(`{"fault":"fail-metrics"}`)
		code, _ := f.get("/metrics")
		f.want("/metrics", code, http.StatusInternalServerError)
		code, reply := f.call("/vllmsim/fault", `{"fault":"explode"}`)
		f.want("unknown fault: "+reply, code, http.StatusBadRequest)
	})
}

// dialStatus makes a GET on a connection of its own: the status, or the error of the connection.
func dialStatus(addr, path string) (int, error) {
	tr := &http.Transport{DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Get("http://" + addr + path)
	if err != nil {
		return 0, err
	}
	_ = resp.Body.Close()
	return resp.StatusCode, nil
}

// TestRefuse: the port is closed for new connections, open ones go on, and it opens again at the same address.
func TestRefuse(t *testing.T) {
	s, addr := start(t, tiny(), nil)
	client := &http.Client{Transport: &http.Transport{}}
	get := func() error {
		resp, err := client.Get("http://" + addr + "/version")
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		return err
	}
	if err := get(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.SetFault(Fault{Kind: FaultRefuse})
		if _, err := dialStatus(addr, "/version"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("dialling a closed port: %v", err)
		}
		if err := get(); err != nil {
			t.Errorf("the open connection: %v", err)
		}
		s.ClearFaults()
		if code, err := dialStatus(addr, "/version"); err != nil || code != http.StatusOK {
			t.Fatalf("dialling the port again: %d %v", code, err)
		}
	}
	client.CloseIdleConnections()
}

// TestResetIsReset: the client sees a TCP reset, not an end.
func TestResetIsReset(t *testing.T) {
	_, addr := start(t, tiny(), nil)
	for spec, wantBytes := range map[string]bool{"reset": false, "reset;after=2": true} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		body := streamBody(50)
		_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s",
			chatPath, FaultHeader, spec, len(body), body)
		got, err := io.ReadAll(conn)
		if !errors.Is(err, syscall.ECONNRESET) || bytes.Contains(got, []byte("data: ")) != wantBytes {
			t.Errorf("%s: %v after %d bytes", spec, err, len(got))
		}
		_ = conn.Close()
	}
}

// TestHalfClose: a client that closes its write side counts as gone: the stream is dropped at once.
func TestHalfClose(t *testing.T) {
	cfg := tiny()
	cfg.Speed = 0.2 // 2000 tokens take half a minute
	s, addr := start(t, cfg, nil)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := streamBody(2000)
	_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(body), body)
	r := bufio.NewReader(conn)
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Fatalf("status line %q, %v", line, err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(r)
	if bytes.Contains(rest, []byte("[DONE]")) {
		t.Error("the stream was completed")
	}
	if st := s.Stats(); st.Finished != 0 {
		t.Errorf("stats: %+v", st)
	}
}

// TestServeEndsWithContext: the end of ctx cuts every connection.
func TestServeEndsWithContext(t *testing.T) {
	bubble(t, tiny(), func(f *fixture) {
		st := f.open(chatPath, streamBody(1000))
		time.Sleep(50 * time.Millisecond)
		f.cancel()
		st.all()
		f.want("the stream was cut", st.err != nil && !errors.Is(st.err, io.EOF), true)
		f.want("Serve", <-f.served, context.Canceled)
	})
}

// TestStats: executed bodies are counted by their hash, and the numbers add up.
func TestStats(t *testing.T) {
	bubble(t, tiny(), func(f *fixture) {
		for range 3 {
			f.call(textPath, `{"prompt":"a","max_tokens":2}`)
		}
		f.call(textPath, `{"prompt":"b","max_tokens":2}`)
		f.call(textPath, `{"prompt":"","max_tokens":2}`)
		got := f.s.Stats()
		want := Stats{Requests: 5, Executed: 4, Finished: 4, Refused: 1, Prompt: 4, Generated: 8, MaxInFlight: 1, Connections: 1, ByBody: map[string]int64{
			"9834876dcfb05cb167a5c24953eba58c4ac89b1adf57f28f2f9d09af107ee8f0": 0}}
		counts := map[int64]int{}
		for _, n := range got.ByBody {
			counts[n]++
		}
		f.want("bodies", fmt.Sprint(counts), "map[1:1 3:1]")
		got.ByBody, want.ByBody = nil, nil
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("stats (-want +got):\n%s", diff)
		}
	})
}
