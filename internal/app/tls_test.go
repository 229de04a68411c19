package app

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/testkit/certs"
	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// writePair writes a self-signed certificate of that serial number for loopback.
func writePair(t *testing.T, dir string, serial int64) (cert, key string) {
	t.Helper()
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	certs.Issue(t, &x509.Certificate{SerialNumber: big.NewInt(serial), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true,
		BasicConstraintsValid: true}, nil).Write(t, cert, key)
	return cert, key
}

// TestTLS: the API over TLS with HTTP/1.1 and HTTP/2, nothing older than TLS 1.2, and a renewed certificate without a restart.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := writePair(t, dir, 1)
	cfg, err := config.Parse("x.yaml", []byte("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\ntls: {cert_file: "+cert+", key_file: "+key+"}\npools: [{name: a, endpoints: [http://127.0.0.1:1]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	var logged lockedBuffer
	g, err := Start(t.Context(), cfg, slog.New(slog.NewTextHandler(&logged, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if !strings.HasPrefix(g.API(), "https://") {
		t.Errorf("the API is at %s", g.API())
	}
	get := func(change func(*http.Transport)) *http.Response {
		t.Helper()
		roots := x509.NewCertPool()
		raw, _ := os.ReadFile(cert)
		roots.AppendCertsFromPEM(raw)
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
		change(tr)
		defer tr.CloseIdleConnections()
		res, fault := (&http.Client{Transport: tr}).Get(g.API() + "/v1/nothing")
		if fault != nil {
			t.Fatal(fault)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		return res
	}
	if res := get(func(*http.Transport) {}); res.ProtoMajor != 2 || res.StatusCode != 404 {
		t.Errorf("by default: %s, status %d", res.Proto, res.StatusCode)
	}
	if res := get(func(tr *http.Transport) {
		tr.ForceAttemptHTTP2, tr.TLSClientConfig.NextProtos = false, []string{"http/1.1"}
	}); res.ProtoMajor != 1 || res.StatusCode != 404 {
		t.Errorf("without HTTP/2: %s, status %d", res.Proto, res.StatusCode)
	}
	if _, err = tls.Dial("tcp", strings.TrimPrefix(g.API(), "https://"), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
	writePair(t, dir, 2)
	time.Sleep(lookEvery + 100*time.Millisecond) // handshakes look at the files that often
	if res := get(func(*http.Transport) {}); res.TLS.PeerCertificates[0].SerialNumber.Int64() != 2 {
		t.Errorf("the certificate is number %v after the renewal", res.TLS.PeerCertificates[0].SerialNumber)
	}
	whole, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	torn := time.Now().Truncate(time.Hour)
	for _, content := range []string{"torn", "torn", string(whole)} { // said once, however often clients come; then all is well again
		if err := os.WriteFile(key, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if content == "torn" {
			if err := os.Chtimes(key, time.Time{}, torn); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(lookEvery + 100*time.Millisecond)
		if res := get(func(*http.Transport) {}); res.TLS.PeerCertificates[0].SerialNumber.Int64() != 2 {
			t.Error("a torn renewal took the old certificate away")
		}
	}
	if n := strings.Count(logged.String(), "is not usable, the old one stays"); n != 1 {
		t.Errorf("the torn renewal was logged %d times:\n%s", n, logged.String())
	}
	if n := strings.Count(logged.String(), "certificate read again"); n != 2 {
		t.Errorf("%d renewals were logged:\n%s", n, logged.String())
	}
}

// lockedBuffer takes a log from several goroutines.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// A certificate that cannot be read is an error of the start that names the keys, and leaves no port taken.
func TestStartWithoutCertificate(t *testing.T) {
	addr := loopback.Free(t)
	cfg := config.Default()
	cfg.Listen, cfg.Admin, cfg.TLS = addr, "127.0.0.1:0", &config.TLS{CertFile: "none.crt", KeyFile: "none.key"}
	if _, err := Start(t.Context(), cfg, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "tls.cert_file and tls.key_file") {
		t.Errorf("%v", err)
	}
	if ln, err := net.Listen("tcp", addr); err != nil {
		t.Errorf("the port is still taken: %v", err)
	} else {
		ln.Close()
	}
}
