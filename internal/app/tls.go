package app

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"pointsman.dev/pointsman/internal/config"
)

// certificate is the API's certificate, read again when one of its files changed: cert-manager and mounted secrets renew it
// under a running gateway.
type certificate struct {
	files config.TLS
	log   *slog.Logger

	mu     sync.Mutex
	pair   *tls.Certificate
	stamp  [2]fileStamp // of the files when they were read last
	looked time.Time
}

// fileStamp changes when a file does.
type fileStamp struct {
	size int64
	at   time.Time
}

// lookEvery bounds how often handshakes look at the files.
const lookEvery = time.Second

// secureAPI is newTLS of a configuration, nil without tls.
func secureAPI(cfg *config.Config, log *slog.Logger) (*tls.Config, error) {
	if cfg.TLS == nil {
		return nil, nil
	}
	return newTLS(*cfg.TLS, log)
}

// newTLS reads the certificate and returns what the listener speaks: TLS 1.2 and later, HTTP/2 and HTTP/1.1.
func newTLS(files config.TLS, log *slog.Logger) (*tls.Config, error) {
	c := &certificate{files: files, log: log}
	if err := c.read(); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}, nil
}

// get is tls.Config's GetCertificate. A renewed pair that cannot be read leaves the old one in force, and is read again once
// one of its files changed again: the two are seldom written at the same moment.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < lookEvery {
		return c.pair, nil
	}
	c.looked = time.Now()
	if c.stamps() == c.stamp {
		return c.pair, nil
	}
	if err := c.read(); err != nil {
		c.log.Warn("the renewed certificate is not usable, the old one stays", "error", err)
	} else {
		c.log.Info("certificate read again", "file", c.files.CertFile, "valid_until", c.pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return c.pair, nil
}

func (c *certificate) read() error {
	c.stamp = c.stamps() // before reading: what is written meanwhile is a change
	pair, err := tls.LoadX509KeyPair(c.files.CertFile, c.files.KeyFile)
	if err != nil {
		return fmt.Errorf("reading the certificate %s: %w (the keys are tls.cert_file and tls.key_file)", c.files.CertFile, err)
	}
	c.pair = &pair
	return nil
}

func (c *certificate) stamps() (s [2]fileStamp) {
	for i, path := range []string{c.files.CertFile, c.files.KeyFile} {
		if info, err := os.Stat(path); err == nil {
			s[i] = fileStamp{info.Size(), info.ModTime()}
		}
	}
	return s
}
