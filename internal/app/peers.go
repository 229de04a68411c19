package app

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"pointsman.dev/pointsman/internal/config"
	"pointsman.dev/pointsman/internal/peers"
	"pointsman.dev/pointsman/internal/telemetry"
)

// meetPeers opens the listener of the exchange of picks and starts it, if there are other replicas.
func (g *Gateway) meetPeers(cfg *config.Config) error {
	if cfg.Peers == nil {
		return nil
	}
	c := peers.Config{DNS: cfg.Peers.DNS, List: cfg.Peers.List, Release: Version(), Metrics: g.metrics.NewPeers, Log: g.log}
	if cfg.Peers.TLS != nil {
		p, err := newPassport(cfg.Peers, g.log)
		if err != nil {
			return err
		}
		c.ServerTLS, c.ClientTLS = p.server(), p.client
	}
	x, err := peers.New(c)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", cfg.Peers.Listen)
	if err != nil {
		return fmt.Errorf("opening the peers listener %s: %w (the key is `peers.listen`)", cfg.Peers.Listen, err)
	}
	g.exchange = x
	g.log.Info("listening for peers", "peers", ln.Addr().String(), "tls", cfg.Peers.TLS != nil)
	g.done.Go(func() {
		if err := x.Run(g.ctx, ln); err != nil {
			g.failed <- err
		}
	})
	return nil
}

// Peers are the other replicas that are told the picks of this one.
func (g *Gateway) Peers() []telemetry.Peer {
	if g.exchange == nil {
		return []telemetry.Peer{}
	}
	return g.exchange.Status()
}

// passport is what a replica shows to the others, and how it looks at theirs.
type passport struct {
	own   *certificate
	ca    string   // file
	name  string   // that every replica's certificate is valid for; "": the host that it was reached by
	names []string // one of which the certificate of a replica that calls must be valid for
}

func newPassport(c *config.Peers, log *slog.Logger) (*passport, error) {
	own := &certificate{files: config.TLS{CertFile: c.TLS.CertFile, KeyFile: c.TLS.KeyFile}, log: log}
	if err := own.read(); err != nil {
		return nil, err
	}
	p := &passport{own: own, ca: c.TLS.CAFile, name: c.TLS.Name}
	if p.name != "" {
		p.names = []string{p.name}
		return p, nil
	}
	for _, at := range append([]string{c.DNS}, c.List...) {
		if host, _, err := net.SplitHostPort(at); err == nil {
			p.names = append(p.names, host)
		}
	}
	return p, nil
}

// authorities reads who signs the replicas' certificates. It is read at each connection, of which there are few.
func (p *passport) authorities() (*x509.CertPool, error) {
	raw, err := os.ReadFile(p.ca)
	if err != nil {
		return nil, fmt.Errorf("reading the authorities of peers: %w (the key is peers.tls.ca_file)", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("reading the authorities of peers %s: no certificate in it (the key is peers.tls.ca_file)", p.ca)
	}
	return pool, nil
}

// client is what this replica calls another one with.
func (p *passport) client(host string) (*tls.Config, error) {
	pool, err := p.authorities()
	if err != nil {
		return nil, err
	}
	if p.name != "" {
		host = p.name
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, ServerName: host, RootCAs: pool,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return p.own.get(nil) }}, nil
}

// server is what this replica answers calls with.
func (p *passport) server() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: p.own.get, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool, err := p.authorities()
		if err != nil {
			return nil, err
		}
		return &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: p.own.get, NextProtos: []string{"h2"},
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, VerifyConnection: p.known}, nil
	}}
}

// known refuses a caller whose certificate was made for something else by the same authority.
func (p *passport) known(s tls.ConnectionState) error {
	for _, name := range p.names {
		if s.PeerCertificates[0].VerifyHostname(name) == nil {
			return nil
		}
	}
	return errors.New("checking the certificate of a peer: it is valid for none of the names of the replicas (see peers.tls.name)")
}
