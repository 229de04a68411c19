// Package kubetest starts a real kube-apiserver with its etcd for a test, and applies manifests to it.
//
// It is for tests only. There is no kubelet, no scheduler and no controller: pods stay as the test writes them, status
// included, and EndpointSlices are the test's own. A machine without the two programs skips; `make tools` installs
// them. Both listen on loopback and end with the test.
package kubetest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/testkit/loopback"
)

const (
	// AdminToken may do everything.
	AdminToken = "admin-token"
	// UserToken belongs to the user "gateway", who may do nothing but what the test's RoleBindings give.
	UserToken = "gateway-token"
)

// patience is how long a server may take to be ready: a few seconds, more on a busy machine.
const patience = 2 * time.Minute

// Server is one kube-apiserver. Its methods are for one goroutine at a time.
type Server struct {
	// URL is the server's base, https://127.0.0.1:port, the same after Stop and Resume.
	URL string
	// CAFile is the file with the certificate that clients trust.
	CAFile string

	t       testing.TB
	program string
	etcd    string // URL
	dir     string
	port    string
	client  *http.Client
	process *exec.Cmd
	kinds   map[string]kind // by apiVersion and kind, as Apply learnt them
}

// Start starts etcd and a kube-apiserver and returns when it is ready. It skips the test where one of them is missing.
func Start(t testing.TB) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: a real API server takes too long for -short")
	}
	etcd, apiserver := tool("etcd"), tool("kube-apiserver")
	if etcd == "" || apiserver == "" {
		t.Skip("SKIPPED: needs etcd and kube-apiserver, which `make tools` installs")
	}
	dir := t.TempDir()
	client, peer := freePort(t), freePort(t)
	url := "http://127.0.0.1:" + client
	launch(t, dir, etcd, "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", "http://127.0.0.1:"+peer, "--initial-advertise-peer-urls", "http://127.0.0.1:"+peer,
		"--initial-cluster", "default=http://127.0.0.1:"+peer)
	return newServer(t, apiserver, url)
}

// Beside starts another kube-apiserver on the same etcd, as clusters with several have it: what is written through one is
// seen by the other, also after the other was away.
func (s *Server) Beside() *Server {
	s.t.Helper()
	return newServer(s.t, s.program, s.etcd)
}

func newServer(t testing.TB, program, etcd string) *Server {
	t.Helper()
	dir := t.TempDir()
	s := &Server{t: t, program: program, etcd: etcd, dir: dir, port: freePort(t), kinds: map[string]kind{}, CAFile: filepath.Join(dir, "apiserver.crt")}
	s.URL = "https://127.0.0.1:" + s.port
	tokens := AdminToken + ",admin,admin,\"system:masters\"\n" + UserToken + ",gateway,gateway\n"
	must(t, os.WriteFile(filepath.Join(dir, "tokens.csv"), []byte(tokens), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "accounts.key"), newKey(t), 0o600))
	s.Resume()
	return s
}

// Resume starts the server, again after Stop, and waits until it is ready.
func (s *Server) Resume() {
	s.t.Helper()
	file := func(name string) string { return filepath.Join(s.dir, name) }
	s.process = launch(s.t, s.dir, s.program, "--etcd-servers="+s.etcd, "--bind-address=127.0.0.1", "--secure-port="+s.port,
		"--cert-dir="+s.dir, "--token-auth-file="+file("tokens.csv"), "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+file("accounts.key"),
		"--service-account-signing-key-file="+file("accounts.key"), "--disable-admission-plugins=ServiceAccount",
		"--service-cluster-ip-range=10.96.0.0/16", "--endpoint-reconciler-type=none", "--profiling=false")
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		var err error
		if s.client == nil {
			s.client, err = trusting(s.CAFile)
		}
		var status int
		var answer []byte
		if err == nil {
			status, answer, err = s.Do(http.MethodGet, "/readyz", "", nil)
		}
		if err == nil && status == http.StatusOK {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("kube-apiserver is not ready after %v: %v %d %s\n%s", patience, err, status, answer, tail(file("kube-apiserver.log")))
		}
	}
}

// Stop kills the server. Its etcd, and with it every object, stays.
func (s *Server) Stop() {
	_ = s.process.Process.Kill()
	_ = s.process.Wait() // it was killed: that is its error
	s.client.CloseIdleConnections()
}

// Do sends one request as the administrator and returns the answer's status and body. contentType "" is JSON.
func (s *Server) Do(method, path, contentType string, body []byte) (status int, answer []byte, err error) {
	req, err := http.NewRequest(method, s.URL+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if contentType == "" {
		contentType = "application/json"
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Authorization", "Bearer "+AdminToken)
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// Kubeconfig writes a kubeconfig with a token and a default namespace, and returns its path.
func (s *Server) Kubeconfig(token, namespace string) string {
	s.t.Helper()
	return s.KubeconfigVia(s.URL, token, namespace)
}

// KubeconfigVia is a Kubeconfig that leads to the server by another base URL, a Wire's.
func (s *Server) KubeconfigVia(url, token, namespace string) string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), "kubeconfig")
	must(s.t, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test, namespace: %s}}]
clusters: [{name: test, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: test, user: {token: %s}}]
`, namespace, url, s.CAFile, token), 0o600))
	return path
}

// Compact makes etcd forget the history of every object, so that a watch from before answers 410 Gone once the server
// was started anew.
func (s *Server) Compact() {
	s.t.Helper()
	var seen struct{ Header struct{ Revision string } }
	s.etcdCall("range", fmt.Sprintf(`{"key":%q}`, base64.StdEncoding.EncodeToString([]byte("x"))), &seen)
	s.etcdCall("compaction", fmt.Sprintf(`{"revision":%s,"physical":true}`, seen.Header.Revision), nil)
}

// etcdCall asks etcd's JSON gateway.
func (s *Server) etcdCall(call, body string, into any) {
	s.t.Helper()
	client := &http.Client{Timeout: patience}
	resp, err := client.Post(s.etcd+"/v3/kv/"+call, "application/json", bytes.NewReader([]byte(body)))
	must(s.t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	must(s.t, err)
	if resp.StatusCode != http.StatusOK {
		s.t.Fatalf("etcd %s: %d %s", call, resp.StatusCode, answer)
	}
	if into != nil {
		must(s.t, json.Unmarshal(answer, into))
	}
}

// InferencePools returns the definitions of InferencePool, v1 and v1alpha2, as the Gateway API inference extension publishes them. It
// skips the test where they are missing.
func InferencePools(t testing.TB) string {
	t.Helper()
	var all []string
	for _, name := range []string{"inferencepools.yaml", "inferencepools-v1alpha2.yaml"} {
		text, err := os.ReadFile(filepath.Join(installed(), "crds", name))
		if err != nil {
			t.Skip("SKIPPED: needs the definitions of InferencePool, which `make tools` gets")
		}
		all = append(all, string(text))
	}
	return strings.Join(all, "\n---\n")
}

// installed is the folder where `make tools` puts what only tests use; "" outside of the repository.
func installed() string {
	dir, err := os.Getwd()
	for err == nil && dir != filepath.Dir(dir) {
		if _, none := os.Stat(filepath.Join(dir, "go.mod")); none == nil {
			return filepath.Join(dir, "out")
		}
		dir = filepath.Dir(dir)
	}
	return ""
}

// tool finds a program among those installed or on the path; "" when it is in neither.
func tool(name string) string {
	if path, err := exec.LookPath(filepath.Join(installed(), "bin", name)); err == nil {
		return path
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

// launch starts a program that is killed when the test ends; what it prints goes to a file beside its data.
func launch(t testing.TB, dir, program string, args ...string) *exec.Cmd {
	t.Helper()
	out, err := os.OpenFile(filepath.Join(dir, filepath.Base(program)+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, dir
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = out.Close()
	})
	return cmd
}

func freePort(t testing.TB) string {
	t.Helper()
	_, port, err := net.SplitHostPort(loopback.Free(t))
	must(t, err)
	return port
}

// newKey makes the key that signs the tokens of service accounts.
func newKey(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

// trusting is a client that trusts the certificate which the server wrote at its start.
func trusting(caFile string) (*http.Client, error) {
	ca, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("reading %s: no certificate", caFile)
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}, Timeout: patience}, nil
}

// tail is the end of a log.
func tail(path string) []byte {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return data[max(0, len(data)-4000):]
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
