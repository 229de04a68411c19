package config

import (
	"crypto/tls"
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// What the API's listener shows to the world: its certificate, and the pages that may use it.

// checkListener demands what cors and tls cannot do without, and that certificate and key belong together.
func (d *decoder) checkListener(c *Config) {
	if item, ok := d.seen["cors"]; ok && item.kind == kindMap {
		d.required(item, "origins", "say which pages may use the API")
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
	cert, ok := d.pemFile(d.seen["tls.cert_file"], c.TLS.CertFile)
	key, ok2 := d.pemFile(d.seen["tls.key_file"], c.TLS.KeyFile)
	if !ok || !ok2 {
		return
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		why := strings.TrimPrefix(err.Error(), "tls: ")
		if strings.Contains(why, "PEM") {
			why = "one of them holds none in PEM"
		}
		d.fail(d.seen["tls.cert_file"], "does not make a pair with key_file: "+why,
			"both in PEM: the certificate with its chain in cert_file, its private key in key_file")
		return
	}
	switch now := time.Now(); {
	case now.After(pair.Leaf.NotAfter):
		d.warn(d.seen["tls.cert_file"], "the certificate is out of date since "+pair.Leaf.NotAfter.UTC().Format(time.DateTime), "renew it: the files are read again when they change")
	case now.Before(pair.Leaf.NotBefore):
		d.warn(d.seen["tls.cert_file"], "the certificate is not valid before "+pair.Leaf.NotBefore.UTC().Format(time.DateTime), "look at the clock of this machine")
	}
}

// maxPEM is the longest certificate or key file read; a chain has some thousand bytes.
const maxPEM = 1 << 20

func (d *decoder) pemFile(v value, path string) ([]byte, bool) {
	data, err := readSome(path, maxPEM)
	if err != nil {
		rule, hint := unreadable(err)
		d.fail(v, rule, hint)
	}
	return data, err == nil
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
	if u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil || strings.HasSuffix(text, "?") || strings.HasSuffix(text, "#") {
		return "", errors.New("an origin has a scheme, a host and a port, and nothing else")
	}
	if strings.Contains(u.Host, "*") {
		return "", errors.New("a pattern of hosts is not supported")
	}
	host := strings.ToLower(u.Hostname())
	if !validHost(host) {
		return "", errors.New("the host is neither an IP address nor a name")
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() {
		host = "[" + host + "]"
	}
	switch port := u.Port(); {
	case port == "" && strings.HasSuffix(u.Host, ":"), port != "" && portRule(port, 1) != "":
		return "", errors.New("the port must be a number from 1 to 65535")
	case port != "" && (u.Scheme != "http" || port != "80") && (u.Scheme != "https" || port != "443"):
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
