package acceptance

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The event source of the stream measurements: a model server without a model, which costs as little as it can. Every event
// is one chunk, as vLLM sends them, of about 250 bytes.

const (
	eventHead = "HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2029 00:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n" +
		"vary: Origin\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
	eventText = `data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1861920000,"model":"m",` +
		`"choices":[{"index":0,"delta":{"content":"%s"},"logprobs":null,"finish_reason":null,"token_ids":null}],"system_fingerprint":null}` + "\n\n"
	lastText = `data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1861920000,"model":"m",` +
		`"choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"length","stop_reason":null}]}` + "\n\n"
	doneText = "data: [DONE]\n\n"
)

var stampMark = []byte(`"content":"`)

// stampDigits is the length of a time in nanoseconds since 1970. It stands where the word would, which differs from event to
// event too.
const stampDigits = 19

func chunk(text string) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n", len(text), text) }

// paced is a stream that the pacer serves.
type paced struct {
	conn net.Conn
	left int
	done chan struct{}
}

// pacer sends one event after the other, to each stream in turn, evenly over time: each of them is a wake-up of its own for
// whoever passes it on. It is the dearest load there is for a number of events.
type pacer struct {
	gap  time.Duration // between two events of one stream
	over atomic.Bool   // every stream ends at its turn
	mu   sync.Mutex
	all  []*paced
}

func (p *pacer) add(s *paced) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, s)
}

func (p *pacer) run() {
	runtime.LockOSThread()
	event := chunk(fmt.Sprintf(eventText, strings.Repeat("0", stampDigits)))
	at := bytes.Index(event, stampMark) + len(stampMark)
	end := bytes.Join([][]byte{chunk(lastText), chunk(doneText), []byte("0\r\n\r\n")}, nil)
	due := time.Now()
	for i := 0; ; i++ {
		p.mu.Lock()
		n := len(p.all)
		var s *paced
		if n > 0 {
			i %= n
			s = p.all[i]
		}
		p.mu.Unlock()
		due = due.Add(p.gap / time.Duration(max(n, 1)))
		if late := time.Since(due); late > time.Second { // nobody was there, or the machine stood still
			due = due.Add(late)
		} else if late < 0 {
			pause := syscall.NsecToTimespec(int64(-late))
			_ = syscall.Nanosleep(&pause, nil) // time.Sleep is as coarse as the poller: a millisecond
		}
		if s == nil {
			continue
		}
		var err error
		if s.left > 0 && !p.over.Load() {
			s.left--
			strconv.AppendInt(event[:at], time.Now().UnixNano(), 10)
			_, err = s.conn.Write(event)
		} else {
			_, err = s.conn.Write(end)
			s.left = -1
		}
		if err != nil || s.left < 0 {
			p.mu.Lock()
			p.all = append(p.all[:i], p.all[i+1:]...)
			p.mu.Unlock()
			close(s.done)
		}
	}
}

// eventSource answers with as many events as the query asks for: one per gap of the pacer, which it starts, or flat out, in
// writes of 32.
func eventSource(p *pacer) http.Handler {
	go p.run()
	flat := bytes.Repeat(chunk(fmt.Sprintf(eventText, " word")), 32)
	end := bytes.Join([][]byte{chunk(lastText), chunk(doneText), []byte("0\r\n\r\n")}, nil)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			instantServer(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		n, err := strconv.Atoi(r.URL.Query().Get("events"))
		if err != nil {
			log.Fatalf("counting events of %s: %v", r.URL, err)
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			log.Fatal(err)
		}
		defer conn.Close()
		// The prefill. An answer at once may meet a bare ReverseProxy that still looks whether the request's body has more than
		// was announced, while its server has closed that body because the answer begins: it then drops the answer.
		time.Sleep(10 * time.Millisecond)
		_, _ = io.WriteString(conn, eventHead)
		if r.URL.Query().Has("flat") {
			for ; n > 0 && err == nil; n -= 32 {
				_, err = conn.Write(flat)
			}
			_, _ = conn.Write(end)
			return
		}
		s := &paced{conn: conn, left: n, done: make(chan struct{})}
		p.add(s)
		<-s.done
	})
}

// reading is what one client saw of its stream.
type reading struct {
	delays []time.Duration // from the source's write to here
	gaps   []time.Duration // between two events
	last   time.Time
}

var errNoEnd = errors.New("reading events: the stream's end did not come")

// readEvents asks for n events and reads them to the end. A client with stamps notes when they came; without, it is as fast
// as it can be.
func readEvents(base, query string, n int, stamps bool) (reading, error) {
	var got reading
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		return got, err
	}
	defer conn.Close()
	const body = `{"model":"m","stream":true,"messages":[{"role":"user","content":"Tell me a story."}]}`
	fmt.Fprintf(conn, "POST /v1/chat/completions?events=%d%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		n, query, len(body), body)
	r, err := http.ReadResponse(bufio.NewReaderSize(conn, 64<<10), nil)
	if err != nil {
		return got, err
	}
	if r.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(r.Body)
		return got, fmt.Errorf("reading events: status %d: %s", r.StatusCode, text)
	}
	buf := make([]byte, 64<<10)
	var tail [len(doneText)]byte
	for {
		k, err := r.Body.Read(buf)
		if k >= len(tail) {
			copy(tail[:], buf[k-len(tail):k])
		}
		if stamps {
			got.note(buf[:k], time.Now())
		}
		if errors.Is(err, io.EOF) {
			if string(tail[:]) != doneText {
				return got, errNoEnd
			}
			return got, nil
		}
		if err != nil {
			return got, err
		}
	}
}

// note takes the times of the events in p, which came now.
func (r *reading) note(p []byte, now time.Time) {
	for {
		i := bytes.Index(p, stampMark)
		if i < 0 || len(p) < i+len(stampMark)+stampDigits {
			return
		}
		p = p[i+len(stampMark):]
		ns, err := strconv.ParseInt(string(p[:stampDigits]), 10, 64)
		if err != nil {
			return // the last event
		}
		r.delays = append(r.delays, now.Sub(time.Unix(0, ns)))
		if !r.last.IsZero() {
			r.gaps = append(r.gaps, now.Sub(r.last))
		}
		r.last = now
	}
}

// readAllEvents has so many clients read n events each, and puts what they saw together.
func readAllEvents(base, query string, streams, n int, stamps bool) (reading, error) {
	var all reading
	var mu sync.Mutex
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range streams {
		wg.Go(func() {
			got, err := readEvents(base, query, n, stamps)
			if err != nil {
				failed.Store(&err)
			}
			mu.Lock()
			defer mu.Unlock()
			all.delays, all.gaps = append(all.delays, got.delays...), append(all.gaps, got.gaps...)
		})
	}
	wg.Wait()
	if e := failed.Load(); e != nil {
		return all, *e
	}
	return all, nil
}
