package config

import (
	"crypto/tls"
	"errors"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// What the API's listener shows to the world: its certificate, and the pages that may use it.

// checkListener demands what cors and tls cannot do without, and that certificate and key belong together.
func (d *decoder) checkListener(c *Config) {
	if item, ok := d.seen["cors"]; ok && item.kind == kindMap {
		d.required(item, "origins", "say which pages may use the API")
		d.adviseOrigins(c)
	}
	item, ok := d.seen["tls"]
	if !ok || item.kind != kindMap {
		return
	}
	d.required(item, "cert_file", "TLS needs a certificate")
	d.required(item, "key_file", "TLS needs the certificate's key")
	if c.TLS.CertFile == "" || c.TLS.KeyFile == "" {
		return
	}
	d.checkPair("tls.", c.TLS.CertFile, c.TLS.KeyFile)
}

// checkPair demands that the certificate and the key under the keys that start with path belong together.
func (d *decoder) checkPair(path, certFile, keyFile string) {
	certAt, keyAt := d.seen[path+"cert_file"], d.seen[path+"key_file"]
	cert, _, ok := d.pemFile(certAt, certFile)
	key, open, ok2 := d.pemFile(keyAt, keyFile)
	if !ok || !ok2 {
		return
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		d.fail(certAt, "does not make a pair with key_file: "+pairFault(err, key),
			"both in PEM: the certificate with its chain in cert_file, its private key in key_file")
		return
	}
	if open {
		d.warn(keyAt, "every user of this machine may read the key", "chmod 600, or defaultMode: 0400 of the secret's volume")
	}
	switch now := time.Now(); {
	case now.After(pair.Leaf.NotAfter):
		d.warn(certAt, "the certificate is out of date since "+pair.Leaf.NotAfter.UTC().Format(time.DateTime), "renew it: the files are read again when they change")
	case now.Before(pair.Leaf.NotBefore):
		d.warn(certAt, "the certificate is not valid before "+pair.Leaf.NotBefore.UTC().Format(time.DateTime), "look at the clock of this machine")
	}
}

// pairFault says in our words why a certificate and a key are no pair.
func pairFault(err error, key []byte) string {
	why := strings.TrimPrefix(err.Error(), "tls: ")
	switch {
	case strings.Contains(why, "switched"), strings.Contains(why, "rather than a key"):
		return "they are swapped, or key_file holds a certificate"
	case strings.Contains(why, "PEM"):
		return "one of them holds none in PEM"
	case strings.Contains(string(key), "ENCRYPTED"):
		return "the key is encrypted, and there is nobody to ask for its passphrase"
	case strings.Contains(why, "does not match"):
		return "the key is that of another certificate (the first in cert_file has to be the server's own)"
	}
	return "one of them cannot be decoded"
}

// maxPEM is the longest certificate or key file read; a chain has some thousand bytes.
const maxPEM = 1 << 20

// pemPath stores the path of a PEM file, and refuses the content of one without repeating it.
func (d *decoder) pemPath(v value, dst *string) {
	if v.kind == kindText && strings.Contains(v.text, "-----BEGIN") {
		d.failShowing(v, "", "is PEM itself, want the path of a file that holds it", "write it into a file and name the file here")
		return
	}
	d.path(v, dst)
}

// pemFile reads a certificate or key; open says that everybody may read it.
func (d *decoder) pemFile(v value, path string) (data []byte, open, ok bool) {
	info, err := os.Stat(path) // before opening: a pipe would block
	if err == nil && !info.Mode().IsRegular() {
		d.fail(v, "is not a file", "name the file itself, not its folder")
		return nil, false, false
	}
	if err == nil {
		data, err = readSome(path, maxPEM)
	}
	if err != nil {
		rule, hint := unreadable(err)
		d.fail(v, rule, hint)
		return nil, false, false
	}
	return data, info.Mode().Perm()&0o004 != 0, true
}

// adviseOrigins warns where any page may use a key that is the gateway's.
func (d *decoder) adviseOrigins(c *Config) {
	if !slices.Contains(c.CORS.Origins, "*") {
		return
	}
	for i := range c.Pools {
		if c.Pools[i].APIKeyFile != "" {
			d.warn(d.seen["cors.origins"], "every page that somebody opens may use the API with the key of pool "+c.Pools[i].Name, "list the origins")
			return
		}
	}
}

// origins stores a list of origins.
func (d *decoder) origins(v value, dst *[]string) {
	items := d.list(v, "origins", 256)
	for _, item := range items {
		var text string
		if !d.str(item, &text) {
			continue
		}
		if text == "*" {
			if len(items) > 1 {
				d.fail(item, "allows every page, so the others say nothing", "keep it alone, or remove it")
			}
			*dst = append(*dst, text)
			continue
		}
		origin, err := canonicalOrigin(text)
		switch {
		case err != nil:
			d.fail(item, err.Error(), originHint(text))
		case slices.Contains(*dst, origin):
			d.fail(item, "listed twice", "remove one of them")
		default:
			*dst = append(*dst, origin)
		}
	}
}

// canonicalOrigin returns an origin as browsers send it.
func canonicalOrigin(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", errors.New("want an origin, scheme://host[:port]")
	}
	if u.Path != "" || strings.ContainsAny(text, "?#@") {
		return "", errors.New("an origin has a scheme, a host and a port, and nothing else")
	}
	if strings.Contains(u.Host, "*") {
		return "", errors.New("a pattern of hosts is not supported")
	}
	host := strings.ToLower(u.Hostname())
	if !validHost(host) {
		return "", errors.New("the host is neither an IP address nor a name")
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	port := u.Port()
	if strings.HasSuffix(u.Host, ":") || port != "" && portRule(port, 1) != "" {
		return "", errors.New("the port must be a number from 1 to 65535")
	}
	if usual := map[string]string{"http": "80", "https": "443"}[u.Scheme]; port != "" && port != usual {
		host += ":" + port
	}
	return u.Scheme + "://" + host, nil
}

// originHint guesses the origin that was meant.
func originHint(text string) string {
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || strings.Contains(u.Host, "*") {
		return `list each origin, like https://app.example, or "*" for every page`
	}
	if origin, err := canonicalOrigin(u.Scheme + "://" + u.Host); err == nil {
		return "write " + clip(origin)
	}
	return "like https://app.example"
}
