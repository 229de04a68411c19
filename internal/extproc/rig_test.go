package extproc

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"

	"pointsman.dev/pointsman/internal/discover"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
	"pointsman.dev/pointsman/internal/testkit/records"
)

const (
	chat     = "/v1/chat/completions"
	chatBody = `{"model":"m","messages":[{"role":"user","content":"hello world"}]}`
)

// rig is a processor with a client that plays Envoy.
type rig struct {
	t       testing.TB
	server  *Server
	pool    *pool.Pool
	dir     *pool.Directory
	conn    *grpc.ClientConn
	client  extprocv3.ExternalProcessorClient
	records records.Channel
}

// newRig starts a processor whose one pool has these endpoints (host:port), each with a queue and a share of used KV memory.
func newRig(t testing.TB, endpoints []endpoint, change ...func(*Config)) *rig {
	t.Helper()
	return newRigOf(t, pool.Config{Name: "p"}, endpoints, change...)
}

func newRigOf(t testing.TB, of pool.Config, endpoints []endpoint, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, records: make(records.Channel, 4096)}
	r.pool = pool.New(of, nil, nil)
	targets := make([]discover.Target, len(endpoints))
	for i, e := range endpoints {
		targets[i].URL = "http://" + e.addr
	}
	r.pool.SetTargets(targets)
	r.dir = pool.NewDirectory()
	r.dir.Set([]*pool.Pool{r.pool}, []pool.Alias{{Name: "fast", Serves: "m"}})
	for _, e := range endpoints {
		r.pool.Learned("http://"+e.addr, pool.Facts{Models: []pool.Model{{ID: "m", MaxModelLen: 1 << 20}}})
		report := pool.EmptyReport()
		report.Running, report.Waiting, report.KVUsage, report.CapacityTokens, report.BlockSize = float64(e.queue), float64(e.queue), e.kv, 1e6, 16
		r.pool.Report("http://"+e.addr, report)
	}
	cfg := Config{Directory: r.dir, Metrics: telemetry.New(telemetry.Build{}), Access: telemetry.NewAccess(slog.New(r.records))}
	for _, c := range change {
		c(&cfg)
	}
	r.server = New(cfg)
	ln := bufconn.Listen(1 << 20)
	done := make(chan struct{})
	go func() { defer close(done); _ = r.server.Serve(ln) }()
	var err error
	r.conn, err = grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	r.client = extprocv3.NewExternalProcessorClient(r.conn)
	t.Cleanup(func() {
		_ = r.conn.Close()
		r.server.Close()
		<-done
		r.idle()
	})
	return r
}

// endpoint is one model server as its report shows it.
type endpoint struct {
	addr  string
	queue int
	kv    float64
}

func endpoints(n int) []endpoint {
	list := make([]endpoint, n)
	for i := range list {
		list[i].addr = fmt.Sprintf("10.0.0.%d:8000", i+1)
	}
	return list
}

// idle checks that nothing is left of what was booked and kept.
func (r *rig) idle() {
	r.t.Helper()
	for _, e := range r.pool.Status().Endpoints {
		if e.InFlight != 0 {
			r.t.Errorf("%d requests still booked at %s", e.InFlight, e.Name)
		}
	}
	if n := r.server.bodies.Used(); n != 0 {
		r.t.Errorf("%d bytes of bodies still kept", n)
	}
	if n, _ := r.server.InFlight(); n != 0 {
		r.t.Errorf("%d streams still in flight", n)
	}
}

// record returns the next access record.
func (r *rig) record() map[string]string {
	r.t.Helper()
	return r.records.Next(r.t)
}

// call is one request as Envoy sends it.
type call struct {
	t   testing.TB
	out extprocv3.ExternalProcessor_ProcessClient
	end context.CancelFunc
}

func (r *rig) call() *call {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	r.t.Cleanup(cancel)
	out, err := r.client.Process(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return &call{t: r.t, out: out, end: cancel}
}

func (c *call) send(m *extprocv3.ProcessingRequest) {
	c.t.Helper()
	if err := c.out.Send(m); err != nil {
		c.t.Fatalf("sending: %v", err)
	}
}

func (c *call) recv() *extprocv3.ProcessingResponse {
	c.t.Helper()
	m, err := c.out.Recv()
	if err != nil {
		c.t.Fatalf("receiving: %v", err)
	}
	return m
}

// close ends the stream as Envoy does behind the last message, and waits for the processor's end.
func (c *call) close() {
	c.t.Helper()
	_ = c.out.CloseSend()
	if m, err := c.out.Recv(); err == nil {
		c.t.Fatalf("a message that nobody asked for: %v", m)
	}
}

// picked takes the answer to the request's headers and returns the pick.
func (c *call) picked() (string, *extprocv3.CommonResponse) {
	c.t.Helper()
	m := c.recv()
	h := m.GetRequestHeaders()
	if h == nil {
		c.t.Fatalf("want an answer to the headers, got %v", m)
	}
	pick := mutated(h.Response.GetHeaderMutation(), headerDestination)
	meta := m.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()[headerDestination].GetStringValue()
	if pick == "" || pick != meta {
		c.t.Fatalf("the header says %q, the metadata %q", pick, meta)
	}
	return pick, h.Response
}

// refused takes an immediate response.
func (c *call) refused() *extprocv3.ImmediateResponse {
	c.t.Helper()
	m := c.recv()
	i := m.GetImmediateResponse()
	if i == nil {
		c.t.Fatalf("want a refusal, got %v", m)
	}
	return i
}

// body takes the body that comes back, up to its end.
func (c *call) body() string {
	c.t.Helper()
	var b strings.Builder
	for {
		m := c.recv()
		s := m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if s == nil {
			c.t.Fatalf("want a piece of the body, got %v", m)
		}
		if len(s.Body) > chunkSize {
			c.t.Fatalf("a piece of %d bytes", len(s.Body))
		}
		b.Write(s.Body)
		if s.EndOfStream {
			return b.String()
		}
	}
}

// piece takes what comes back for a piece of the answer.
func (c *call) piece() (string, bool) {
	c.t.Helper()
	m := c.recv()
	s := m.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
	if s == nil {
		c.t.Fatalf("want a piece of the answer, got %v", m)
	}
	return string(s.Body), s.EndOfStream
}

// answerHeaders sends the head of an answer and takes what becomes of it.
func (c *call) answerHeaders(status, contentType string, end bool, more ...string) *extprocv3.HeaderMutation {
	c.t.Helper()
	c.send(responseHeaders(status, contentType, end, more...))
	m := c.recv()
	if m.GetResponseHeaders() == nil {
		c.t.Fatalf("want an answer to the answer's headers, got %v", m)
	}
	return m.GetResponseHeaders().GetResponse().GetHeaderMutation()
}

func mutated(m *extprocv3.HeaderMutation, name string) string {
	for _, h := range m.GetSetHeaders() {
		if h.GetHeader().GetKey() == name {
			if h.AppendAction != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
				return "not overwritten"
			}
			return string(h.Header.RawValue)
		}
	}
	return ""
}

func headerMap(pairs ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

func requestHeaders(method, path string, end bool, more ...string) *extprocv3.ProcessingRequest {
	pairs := append([]string{":method", method, ":path", path, ":authority", "gw", "content-type", "application/json"}, more...)
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(pairs...), EndOfStream: end}}}
}

func requestBody(b string, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(b), EndOfStream: end}}}
}

func responseHeaders(status, contentType string, end bool, more ...string) *extprocv3.ProcessingRequest {
	pairs := append([]string{":status", status, "content-type", contentType}, more...)
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: headerMap(pairs...), EndOfStream: end}}}
}

func responseBody(b string, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte(b), EndOfStream: end}}}
}

func requestTrailers() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}}
}

func responseTrailers() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}}
}

// withMeta adds dynamic metadata to a message.
func withMeta(m *extprocv3.ProcessingRequest, namespace, key string, value any) *extprocv3.ProcessingRequest {
	v, err := structpb.NewValue(value)
	if err != nil {
		panic(err)
	}
	m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{namespace: {Fields: map[string]*structpb.Value{key: v}}}}
	return m
}
