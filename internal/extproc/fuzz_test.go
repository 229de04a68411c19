package extproc

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// played is a stream whose messages are known beforehand.
type played struct {
	grpc.ServerStream
	ctx  context.Context
	in   []*extprocv3.ProcessingRequest
	sent []*extprocv3.ProcessingResponse
}

func (p *played) Context() context.Context { return p.ctx }
func (p *played) RecvMsg(m any) error {
	if len(p.in) == 0 {
		return io.EOF
	}
	proto.Reset(m.(proto.Message))
	proto.Merge(m.(proto.Message), p.in[0])
	p.in = p.in[1:]
	return nil
}
func (p *played) Recv() (*extprocv3.ProcessingRequest, error) {
	m := new(extprocv3.ProcessingRequest)
	return m, p.RecvMsg(m)
}
func (p *played) Send(m *extprocv3.ProcessingResponse) error {
	p.sent = append(p.sent, proto.Clone(m).(*extprocv3.ProcessingResponse))
	return nil
}

// shouts fails a test when something panicked.
type shouts struct {
	slog.Handler
	t *testing.T
}

func (s shouts) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "panicked") {
		r.Attrs(func(a slog.Attr) bool { s.t.Errorf("%s", a); return true })
	}
	return nil
}
func (s shouts) Enabled(context.Context, slog.Level) bool { return true }

// step is the message that a byte of a fuzzed sequence stands for.
func step(b byte) *extprocv3.ProcessingRequest {
	end := b&1 > 0
	bodies := []string{"", chatBody, chatBody[:20], chatBody[20:], "{", "data: {}\n\n", "data: [DONE]\n\n", `data: {"choices":[{"index":0,"delta":{"content":"a"}}]}` + "\n\n"}
	text := bodies[b>>1&7]
	switch b >> 4 {
	case 0, 1:
		m := requestHeaders([]string{"POST", "GET"}[b>>2&1], []string{chat, "/v1/messages", "/x", "/v1/models"}[b>>2&3], end, "x-request-id", "id")
		m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: filterv3.ProcessingMode_BodySendMode(b >> 1 % 5), ResponseBodyMode: filterv3.ProcessingMode_BodySendMode(b >> 2 % 5)}
		return m
	case 2:
		return requestHeaders("POST", chat, end)
	case 3, 4, 5:
		return requestBody(text, end)
	case 6:
		return requestTrailers()
	case 7:
		return withMeta(requestBody(text, end), metaSubset, keySubset, []any{"10.0.0.1", "", 7.0})
	case 8, 9:
		return responseHeaders([]string{"200", "500", "429", "x"}[b>>1&3], []string{"text/event-stream", "application/json"}[b>>3&1], end)
	case 10:
		return withMeta(responseHeaders("200", "text/event-stream", end), metaPick, keyServed, []any{"10.0.0.2:8000", "10.9.9.9:1", "", nil}[b>>1&3])
	case 11, 12, 13:
		return responseBody(text, end)
	case 14:
		return responseTrailers()
	}
	return &extprocv3.ProcessingRequest{ObservabilityMode: end}
}

// FuzzSequence: messages in any order neither panic nor leave anything booked or kept.
func FuzzSequence(f *testing.F) {
	good := []byte{0x20, 0x32, 0x61, 0x80, 0xbe, 0xe0}
	f.Add(good)
	f.Add([]byte{0x20, 0x33, 0x80, 0xbe, 0xbc, 0xb1})
	f.Add([]byte{0xb1, 0x81, 0x33, 0x20, 0x20})
	f.Add([]byte{0x21, 0x81, 0x70, 0xa1, 0xf1})
	f.Fuzz(func(t *testing.T, steps []byte) {
		r := newRig(t, endpoints(3), func(c *Config) {
			c.MaxBody, c.Log = 4096, slog.New(shouts{t: t})
			c.OtherPaths = len(steps)%2 > 0
		})
		p := &played{ctx: t.Context()}
		for _, b := range steps[:min(len(steps), 64)] {
			p.in = append(p.in, step(b))
		}
		_ = r.server.Process(p)
		r.idle()
		refused := 0
		for _, m := range p.sent {
			if m.GetImmediateResponse() != nil {
				refused++
			} else if refused > 0 {
				t.Errorf("%v after a refusal", m)
			}
		}
		if refused > 1 || len(r.records) > 1 {
			t.Errorf("%d refusals, %d records", refused, len(r.records))
		}
	})
}
