package acceptance

import (
	"io"
	"path/filepath"
	"testing"

	"pointsman.dev/pointsman/internal/testkit/certs"
)

// TestEnvoyTLS: Envoy asks a processor over TLS, whose certificate it checks.
func TestEnvoyTLS(t *testing.T) {
	envoyPath(t)
	dir := t.TempDir()
	ours := certs.Authority(t, "ours")
	papers(t, dir, ours, ours)
	file := func(name string) string { return filepath.Join(dir, name) }
	_, urls := fleet(t, 1)
	g := gateway(t, list(urls...), "", "extproc: {listen: \"127.0.0.1:0\", tls: {cert_file: "+file("tls.crt")+", key_file: "+file("tls.key")+"}}\n")
	waitReady(t, g, 1)
	const http2 = "          explicit_http_config: {http2_protocol_options: {}}\n"
	base := envoy(t, urls, g.ExtProc(), http2, http2+`      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
          common_tls_context:
            alpn_protocols: [h2]
            validation_context: {trusted_ca: {filename: `+file("ca.crt")+`}, match_typed_subject_alt_names: [{san_type: IP_ADDRESS, matcher: {exact: 127.0.0.1}}]}
`)
	res, err := askEnvoy(t, client(t, 1), base+"/v1/chat/completions", wordy(100_000))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || res.StatusCode != 200 || res.Header.Get("x-pointsman-request-id") == "" {
		t.Errorf("status %d, %v, %v: %s", res.StatusCode, res.Header, err, text)
	}
}
