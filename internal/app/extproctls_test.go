package app

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// TestExtProcTLS: the external processor speaks TLS, and nothing else, with the certificate of now; a renewal breaks no connection.
func TestExtProcTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := writePair(t, dir, 1)
	cfg, err := config.Parse("x.yaml", []byte("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nextproc: {listen: \"127.0.0.1:0\", tls: {cert_file: "+cert+", key_file: "+key+"}}\npools: [{name: a, endpoints: [http://127.0.0.1:1]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	g, err := Start(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	dial := func(c credentials.TransportCredentials) *grpc.ClientConn {
		t.Helper()
		conn, fault := grpc.NewClient(g.ExtProc(), grpc.WithTransportCredentials(c))
		if fault != nil {
			t.Fatal(fault)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	trusting := func() credentials.TransportCredentials {
		t.Helper()
		c, fault := credentials.NewClientTLSFromFile(cert, "")
		if fault != nil {
			t.Fatal(fault)
		}
		return c
	}
	// ask returns the serial number of the certificate that the processor showed to conn.
	ask := func(conn *grpc.ClientConn) (int64, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var p peer.Peer
		_, fault := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: "liveness"}, grpc.Peer(&p))
		if fault != nil {
			return 0, fault
		}
		return p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].SerialNumber.Int64(), nil
	}
	first := dial(trusting())
	if n, fault := ask(first); n != 1 || fault != nil {
		t.Errorf("certificate %d, %v", n, fault)
	}
	if _, fault := ask(dial(insecure.NewCredentials())); fault == nil {
		t.Error("it answers in the clear")
	}
	writePair(t, dir, 2)
	for deadline := time.Now().Add(20 * time.Second); ; {
		conn := dial(trusting())
		n, fault := ask(conn) // the old certificate, which is not trusted any more, or the new one
		_ = conn.Close()
		if n == 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("still certificate %d, %v", n, fault)
		}
	}
	if n, fault := ask(first); n != 1 || fault != nil {
		t.Errorf("a connection from before the renewal: certificate %d, %v", n, fault)
	}
}

// A certificate of the external processor that cannot be read is an error of the start, and leaves no port taken.
func TestStartWithoutExtProcCertificate(t *testing.T) {
	addr, envoy := loopback.Free(t), loopback.Free(t)
	none := filepath.Join(t.TempDir(), "none")
	cfg := config.Default()
	cfg.Listen, cfg.Admin, cfg.ExtProc = addr, "127.0.0.1:0", &config.ExtProc{Listen: envoy, TLS: &config.TLS{CertFile: none, KeyFile: none}}
	if _, err := Start(t.Context(), cfg, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), none) {
		t.Errorf("%v", err)
	}
	for _, a := range []string{addr, envoy} {
		if ln, err := net.Listen("tcp", a); err != nil {
			t.Errorf("the port is still taken: %v", err)
		} else {
			ln.Close()
		}
	}
}
