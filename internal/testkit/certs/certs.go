// Package certs makes certificates for tests: authorities, and what they sign.
//
// It is for tests only. Keys are made anew each time and live as long as the test.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"testing"
	"time"
)

// Pair is a certificate and its key, both in PEM as files have them.
type Pair struct {
	Cert, Key []byte

	parsed *x509.Certificate
	signer *ecdsa.PrivateKey
}

// Authority returns a self-signed certificate that may sign others; name tells it from others in errors, and may be "".
func Authority(t testing.TB, name string) *Pair {
	t.Helper()
	template := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	template.Subject.CommonName = name
	return Issue(t, template, nil)
}

// Issue returns a certificate by template, signed by ca, or by itself if that is nil. Where template says nothing it gets a serial number of
// its own, and is valid from an hour ago for two hours.
func Issue(t testing.TB, template *x509.Certificate, ca *Pair) *Pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if template.SerialNumber == nil {
		template.SerialNumber = big.NewInt(time.Now().UnixNano())
	}
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	parent, signer := template, key
	if ca != nil {
		parent, signer = ca.parsed, ca.signer
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, data []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}) }
	return &Pair{Cert: block("CERTIFICATE", der), Key: block("PRIVATE KEY", raw), parsed: parsed, signer: key}
}

// Write puts the pair into two files.
func (p *Pair) Write(t testing.TB, cert, key string) {
	t.Helper()
	Replace(t, cert, p.Cert)
	Replace(t, key, p.Key)
}

// Replace makes data the content of a file in one step, so that nobody reads half of it.
func Replace(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
