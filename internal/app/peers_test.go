package app

import (
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
	"pointsman.dev/pointsman/internal/testkit/certs"
	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// authority signs certificates of replicas.
type authority struct {
	*certs.Pair
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{certs.Authority(t, ""), filepath.Join(t.TempDir(), "ca.pem")}
	certs.Replace(t, a.file, a.Cert)
	return a
}

// papers are the keys of peers.tls for a certificate of those names.
func (a *authority) papers(t *testing.T, name string, dns ...string) string {
	t.Helper()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
	certs.Issue(t, &x509.Certificate{DNSNames: dns, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, a.Pair).Write(t, cert, key)
	papers := fmt.Sprintf("cert_file: %s, key_file: %s, ca_file: %s", cert, key, a.file)
	if name != "" {
		papers += ", name: " + name
	}
	return papers
}

// TestReplicas: two whole gateways exchange their picks, in the clear or with certificates, and not with anybody else.
func TestReplicas(t *testing.T) {
	ours, other := newAuthority(t), newAuthority(t)
	for _, c := range []struct {
		name string
		a, b string // of peers.tls
		know bool
	}{
		{"cleartext", "", "", true},
		{"one authority", ours.papers(t, ""), ours.papers(t, ""), true},
		{"by a name", ours.papers(t, "replica.example", "replica.example"), ours.papers(t, "replica.example", "replica.example"), true},
		{"another authority", ours.papers(t, ""), other.papers(t, ""), false},
		{"made for something else", ours.papers(t, "replica.example", "replica.example"), ours.papers(t, "", "printer.example"), false},
		{"one of them in the clear", ours.papers(t, ""), "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			at := []string{loopback.Free(t), loopback.Free(t)}
			var all []*Gateway
			for i, papers := range []string{c.a, c.b} {
				text := fmt.Sprintf("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\npeers:\n  listen: %s\n  list: [%s]\n", at[i], strings.Join(at, ", "))
				if papers != "" {
					text += "  tls: {" + papers + "}\n"
				}
				cfg, err := config.Parse("x.yaml", []byte(text+"pools: [{name: a, endpoints: [http://127.0.0.1:1, http://127.0.0.1:2]}]\n"))
				if err != nil {
					t.Fatal(err)
				}
				g, err := Start(t.Context(), cfg, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				defer g.Close()
				all = append(all, g)
			}
			k, err := all[0].members()[0].pool.Pick(&pool.Request{PromptBytes: 4000})
			if err != nil {
				t.Fatal(err)
			}
			defer k.Done(pool.Result{})
			known := func() bool {
				return all[1].Status()[0].Peers == 1 && all[0].Peers()[0].State == telemetry.PeerConnected
			}
			patience := time.Minute
			if !c.know {
				patience = 2 * time.Second
			}
			// A replica finds out which address of the list is its own when it has called itself.
			strangers := func() bool { return len(all[0].Peers()) > 1 || len(all[1].Peers()) > 1 }
			for end := time.Now().Add(patience); (!known() || strangers()) && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
			}
			if known() != c.know {
				t.Errorf("known: %v, want %v; %+v and %+v", known(), c.know, all[0].Peers(), all[1].Peers())
			}
			if st := all[1].Status()[0]; st.InFlight != 0 {
				t.Errorf("%d requests of a peer count as own", st.InFlight)
			}
			if c.know && strangers() {
				t.Errorf("a replica takes itself for a peer: %+v and %+v", all[0].Peers(), all[1].Peers())
			}
		})
	}
}
