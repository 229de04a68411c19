package config

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pointsman.dev/pointsman/internal/testkit/certs"
)

// pemPair is a self-signed certificate and its key in PEM.
func pemPair(t *testing.T, from, until time.Time) (cert, key string) {
	t.Helper()
	p := certs.Issue(t, &x509.Certificate{NotBefore: from, NotAfter: until, DNSNames: []string{"api.example"}}, nil)
	return string(p.Cert), string(p.Key)
}

// What stands in the two files of tls, and what is said of it. No text repeats what is in the key's file.
func TestTLSFiles(t *testing.T) {
	now := time.Now()
	cert, key := pemPair(t, now.Add(-time.Hour), now.Add(time.Hour))
	other, otherKey := pemPair(t, now.Add(-time.Hour), now.Add(time.Hour))
	old, oldKey := pemPair(t, now.Add(-2*time.Hour), now.Add(-time.Hour))
	soon, soonKey := pemPair(t, now.Add(time.Hour), now.Add(2*time.Hour))
	for _, c := range []struct {
		name, cert, key string
		mode            os.FileMode
		fault, warning  string // part of the only one; "": none
	}{
		{"a pair", cert, key, 0o600, "", ""},
		{"with a chain", cert + other, key, 0o600, "", ""},
		{"both in both files", cert + key, cert + key, 0o600, "", ""},
		{"the chain first", other + cert, key, 0o600, "tls.cert_file: \"c.pem\": does not make a pair with key_file: the key is that of another certificate", ""},
		{"another key", cert, otherKey, 0o600, "the key is that of another certificate", ""},
		{"swapped", key, cert, 0o600, "they are swapped", ""},
		{"two certificates", cert, other, 0o600, "key_file holds a certificate", ""},
		{"no PEM", "certificate", key, 0o600, "holds none in PEM", ""},
		{"empty", cert, "", 0o600, "holds none in PEM", ""},
		{"encrypted", cert, strings.NewReplacer("PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "\nM", "\nZ").Replace(key), 0o600, "the key is encrypted", ""},
		{"torn", cert, strings.Replace(key, "\nM", "\nZ", 1), 0o600, "does not make a pair with key_file: one of them cannot be decoded", ""},
		{"out of date", old, oldKey, 0o600, "", "tls.cert_file: \"c.pem\": the certificate is out of date since "},
		{"not yet valid", soon, soonKey, 0o600, "", "the certificate is not valid before "},
		{"open to everybody", cert, key, 0o644, "", "tls.key_file: \"k.pem\": every user of this machine may read the key"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			write(t, "c.pem", c.cert)
			write(t, "k.pem", c.key)
			if err := os.Chmod("k.pem", c.mode); err != nil {
				t.Fatal(err)
			}
			cfg, err := Parse("x.yaml", []byte(onePool+"tls: {cert_file: c.pem, key_file: k.pem}\n"))
			said := ""
			if err != nil {
				said = err.Error()
			} else {
				for _, w := range cfg.Warnings {
					said += w.Error() + "\n"
				}
			}
			want := c.fault + c.warning
			if (err != nil) != (c.fault != "") || !strings.Contains(said, want) || want == "" && said != "" || strings.Count(said, "\n") > 1 {
				t.Errorf("error %v, said %q, want %q", err, said, want)
			}
			if strings.Contains(said, "MIG") || strings.Contains(said, "BEGIN") {
				t.Errorf("it repeats a key: %s", said)
			}
		})
	}
}

// A pipe in place of a certificate does not hold the gateway up.
func TestTLSPipe(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skip(err)
	}
	_, err := Parse(filepath.Join(dir, "x.yaml"), []byte(onePool+"tls: {cert_file: pipe, key_file: pipe}\n"))
	if err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("%v", err)
	}
}

// The grace period of a pod is its drain and a margin, however the drain came about.
func TestGracePeriod(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"":                                 3615 * time.Second,
		"limit: 10m\n":                     615 * time.Second,
		"drain: 30s\ndrain_delay: 0\n":     40 * time.Second,
		"models: [{name: m, limit: 2h}]\n": 7215 * time.Second,
	} {
		c, err := Parse("x.yaml", []byte(onePool+text))
		if err != nil || c.GracePeriod() != want {
			t.Errorf("%q: %v %v, want %v", text, c.GracePeriod(), err, want)
		}
	}
}
