package acceptance

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// What an endpoint sends without being asked is a piece of an answer as likely as not: it stands in no log. net/http writes it
// to the standard logger.
func TestSurplusIsNotLogged(t *testing.T) {
	url := loopback.Serve(t, answerTwice)
	p := serveFile(t, "log: {level: debug}\npools:\n  - {name: a, endpoints: [\""+url+"\"]}\n")
	ready(t, p)
	for range 20 {
		a := post(http.DefaultClient, nil, p.api+"/v1/chat/completions", chatBody([]message{{"user", "hello"}}, 4))
		if strings.Contains(string(a.body), "SECRET") {
			t.Errorf("a client got %s", a.body)
		}
	}
	if raw, err := os.ReadFile(p.log); err != nil || strings.Contains(string(raw), "SECRET") {
		t.Errorf("%v: the log has pieces of answers:\n%.2000s", err, raw)
	}
}

func answerTwice(c net.Conn) {
	defer c.Close()
	br := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		body := `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":""},"finish_reason":"stop"}]}`
		if req.URL.Path == "/v1/models" {
			body = `{"object":"list","data":[{"id":"m","object":"model"}]}`
		}
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%sHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nSECRET", len(body), body)
	}
}
