package acceptance

import (
	"crypto/x509"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"pointsman.dev/pointsman/internal/testkit/certs"
	"pointsman.dev/pointsman/internal/testkit/loopback"
)

// papers writes what a replica needs to dir: a certificate by an authority for loopback, and whom it trusts.
func papers(t *testing.T, dir string, by, trusts *certs.Pair) {
	t.Helper()
	certs.Issue(t, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, by).
		Write(t, filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	certs.Replace(t, filepath.Join(dir, "ca.crt"), trusts.Cert)
}

// TestReplicasWithCertificates: processes with certificates of one authority exchange their picks; one whose certificate another authority
// signed is told nothing and believed nothing, and the logs on both sides say why. New certificates of a new authority are taken without
// a restart.
func TestReplicasWithCertificates(t *testing.T) {
	t.Parallel()
	bin := filepath.Join(t.TempDir(), "pointsman")
	build(t, bin, "pointsman")
	cfg := simConfig()
	cfg.Speed = 1
	_, urls := simFleet(t, 2, cfg)
	ours, theirs := certs.Authority(t, "ours"), certs.Authority(t, "theirs")
	addresses := []string{loopback.Free(t), loopback.Free(t), loopback.Free(t)}
	var dirs []string
	var all []*program
	for i, at := range addresses {
		dir := t.TempDir()
		if dirs = append(dirs, dir); i < 2 {
			papers(t, dir, ours, ours)
		} else {
			papers(t, dir, theirs, ours)
		}
		all = append(all, serveBuilt(t, bin, fmt.Sprintf("pools:\n  - {name: chat, %s}\npeers:\n  listen: %s\n  list: [%s]\n  tls: {cert_file: %[4]s/tls.crt, key_file: %[4]s/tls.key, ca_file: %[4]s/ca.crt}\n",
			list(urls...), at, strings.Join(addresses, ", "), dir)))
	}
	for _, p := range all {
		p.settled(t, 2)
	}
	all[0].connected(t, 1)
	all[1].connected(t, 1)
	c := client(t, 10)
	know := func(p *program, n int, what string) {
		t.Helper()
		eventually(t, patience, func() string {
			if got := p.pools(t)[0].Peers; got != n {
				return fmt.Sprintf("%s: %d requests of peers, want %d", what, got, n)
			}
			return ""
		})
	}
	slow := func(p *program, seed int) { // an answer that outlasts the test
		go func() { _ = stream(c, p.api, []message{{"user", words(seed, 2000)}}, 4000) }()
	}
	slow(all[0], 1)
	slow(all[2], 2)
	know(all[1], 1, "one of the first")
	eventually(t, patience, func() string {
		if all[0].says("peer is not told of picks", addresses[2], "certificate signed by unknown authority") == 0 {
			return "the first does not say why it tells the third nothing"
		}
		if all[2].says("peer is not told of picks", addresses[0], "certificate") == 0 {
			return "the third does not say why nobody listens to it"
		}
		return ""
	})
	for i, want := range []int{0, 1, 0} {
		if got := all[i].pools(t)[0].Peers; got != want {
			t.Errorf("gateway %d counts %d requests of peers, want %d", i, got, want)
		}
	}

	fresh := certs.Authority(t, "fresh")
	for _, dir := range dirs[:2] {
		papers(t, dir, fresh, fresh)
	}
	if err := all[1].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = all[1].cmd.Wait()
	all[1] = all[1].again(t, bin)
	all[1].connected(t, 1)
	all[0].connected(t, 1)
	know(all[1], 1, "the one that runs on has new certificates too")
	slow(all[1], 3)
	know(all[0], 1, "and takes those of others")
}
