package config

import (
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Peers is the other replicas of this gateway, which tell each other their picks. Exactly one of DNS and List is set.
type Peers struct {
	// Listen (`peers.listen`, default 0.0.0.0:9091) is the address that the other replicas reach this one at. Needs a restart
	// to change, as everything of Peers.
	Listen string

	// DNS (`peers.dns`) is a name and port, host:port, whose A and AAAA records are the replicas, resolved every 5 s: that
	// of a headless Service. The replica itself may be among them.
	DNS string

	// List (`peers.list`) is the replicas' addresses, host:port, each once, 1 to 64. The replica itself may be among them.
	List []string

	// TLS (`peers.tls`, default none) makes replicas show each other a certificate. nil: cleartext, and whoever reaches Listen may
	// take part.
	TLS *PeersTLS
}

// PeersTLS is what a replica shows to the others, and what it demands of them. The files are read again when they change.
type PeersTLS struct {
	// CertFile and KeyFile (`peers.tls.cert_file`, `peers.tls.key_file`, required) are as those of TLS; the certificate is used
	// both ways.
	CertFile, KeyFile string

	// CAFile (`peers.tls.ca_file`, required) is the authorities, in PEM, that sign the replicas' certificates.
	CAFile string

	// Name (`peers.tls.name`, default the host of DNS, or that of the address in List) is the name that the certificate
	// of every replica must be valid for.
	Name string
}

// defaultPeersListen is what replicas listen on unless told otherwise.
const defaultPeersListen = "0.0.0.0:9091"

// maxPeers bounds the replicas: each tells all others everything.
const maxPeers = 64

func peersFields(p *Peers) []field {
	return []field{
		{"listen", func(d *decoder, v value) { d.address(v, &p.Listen) }},
		{"dns", func(d *decoder, v value) { d.peer(v, &p.DNS, true) }},
		{"list", func(d *decoder, v value) { d.peerList(v, &p.List) }},
		{"tls", func(d *decoder, v value) { p.TLS = new(PeersTLS); d.object(v, peersTLSFields(p.TLS)) }},
	}
}

func peersTLSFields(t *PeersTLS) []field {
	return []field{
		{"cert_file", func(d *decoder, v value) { d.pemPath(v, &t.CertFile) }},
		{"key_file", func(d *decoder, v value) { d.pemPath(v, &t.KeyFile) }},
		{"ca_file", func(d *decoder, v value) { d.pemPath(v, &t.CAFile) }},
		{"name", func(d *decoder, v value) { d.hostName(v, &t.Name) }},
	}
}

// peerList stores the addresses of replicas.
func (d *decoder) peerList(v value, dst *[]string) {
	first := map[string]int{}
	for _, item := range d.list(v, "addresses", maxPeers) {
		var at string
		if !d.peer(item, &at, false) {
			continue
		}
		if line, again := first[at]; again {
			d.fail(item, fmt.Sprintf("the same replica as in line %d", line), "remove one of them")
			continue
		}
		first[at] = item.line
		*dst = append(*dst, at)
	}
}

// peer stores the address of a replica, host:port; a name is one that has several addresses.
func (d *decoder) peer(v value, dst *string, name bool) bool {
	const like = "like pointsman-headless:9091"
	if v.kind != kindText {
		d.wrongKind(v, "a name with a port "+like)
		return false
	}
	if _, rest, ok := strings.Cut(v.text, "://"); ok {
		d.failShowing(v, redactURL(v.text), "want host:port without a scheme", peerHint(rest, like))
		return false
	}
	host, port, err := net.SplitHostPort(v.text)
	if err != nil {
		d.failShowing(v, redactURL(v.text), "want host:port", peerHint(v.text+":9091", like))
		return false
	}
	_, err = netip.ParseAddr(host)
	switch {
	case err == nil && name:
		d.fail(v, "is an address, not a name", "write list: ["+net.JoinHostPort(host, port)+"]")
		return false
	case err != nil && !validHost(host):
		d.failShowing(v, redactURL(v.text), "the host is neither an IP address nor a name", like)
		return false
	case everyInterface(host):
		d.fail(v, "is every interface of a machine, not a replica", "name the replica's own address")
		return false
	}
	if rule := portRule(port, 1); rule != "" {
		d.fail(v, rule, "replicas listen on 9091 unless told otherwise")
		return false
	}
	*dst = net.JoinHostPort(strings.ToLower(strings.TrimSuffix(host, ".")), strings.TrimLeft(port, "0"))
	return true
}

// peerHint repeats what was written in the right form, if nothing in it may be a secret.
func peerHint(text, otherwise string) string {
	host, port, err := net.SplitHostPort(text)
	if err != nil || !validHost(host) || portRule(port, 1) != "" {
		return otherwise
	}
	return "write " + clip(printable(text))
}

// hostName stores the name that a certificate must hold.
func (d *decoder) hostName(v value, dst *string) {
	var name string
	if !d.str(v, &name) {
		return
	}
	if !validHost(name) {
		d.fail(v, "is neither an IP address nor a name", "take a name that the certificate is valid for, like pointsman-headless")
		return
	}
	*dst = strings.ToLower(name)
}

// checkPeers demands one source of replicas, a socket of its own, and certificates that belong together.
func (d *decoder) checkPeers(c *Config) {
	item, ok := d.seen["peers"]
	if !ok || item.kind != kindMap {
		return
	}
	d.checkPeerSource(item)
	for _, other := range []string{"listen", "admin"} {
		at, is := d.top(other), ownAddresses(c)[other]
		if d.failed(other) || d.failed("peers.listen") || !sameSocket(c.Peers.Listen, is) {
			continue
		}
		if v, set := d.seen["peers.listen"]; set {
			at = v
		}
		d.fail(at, "the same socket for "+other+", "+is+", and for peers.listen, "+c.Peers.Listen, "give peers.listen a port of its own")
	}
	d.checkPeersTLS(c)
	_, port, err1 := net.SplitHostPort(c.Peers.DNS)
	_, own, err2 := net.SplitHostPort(c.Peers.Listen)
	if err1 == nil && err2 == nil && port != own && own != "0" && !d.failed("peers.listen") {
		d.warn(d.seen["peers.dns"], "replicas are asked on port "+port+", and this one listens on "+own, "a headless Service passes the port on as it is: make them equal")
	}
}

// checkPeerSource demands exactly one of dns and list.
func (d *decoder) checkPeerSource(item value) {
	dns, byDNS := d.seen["peers.dns"]
	list, byList := d.seen["peers.list"]
	_, misspelt := d.seen["peers."+unknown]
	switch {
	case byDNS && byList:
		late := list
		if dns.line > list.line || dns.line == list.line && dns.col > list.col {
			late = dns
		}
		d.failShowing(late, "", "replicas have one source, and here are dns and list", "keep one of the two")
	case !byDNS && !byList && !misspelt:
		d.failShowing(item, "", "does not say where the other replicas are", "add dns: pointsman-headless:9091, or list: [10.0.0.5:9091]")
	}
}

// sameSocket reports whether two listeners cannot both have their address.
func sameSocket(a, b string) bool {
	ah, ap, err1 := net.SplitHostPort(a)
	bh, bp, err2 := net.SplitHostPort(b)
	return err1 == nil && err2 == nil && ap == bp && ap != "0" && (ah == bh || everyInterface(ah) || everyInterface(bh))
}

func (d *decoder) checkPeersTLS(c *Config) {
	item, ok := d.seen["peers.tls"]
	if !ok || item.kind != kindMap {
		return
	}
	d.required(item, "cert_file", "replicas show each other a certificate")
	d.required(item, "key_file", "TLS needs the certificate's key")
	d.required(item, "ca_file", "without it nobody's certificate could be trusted")
	t := c.Peers.TLS
	if t.CertFile != "" && t.KeyFile != "" {
		d.checkPair("peers.tls.", t.CertFile, t.KeyFile)
	}
	if t.CAFile == "" {
		return
	}
	v := d.seen["peers.tls.ca_file"]
	if ca, _, ok := d.pemFile(v, t.CAFile); ok && !x509.NewCertPool().AppendCertsFromPEM(ca) {
		d.fail(v, "holds no certificate in PEM", "name the file of the authority that signed the replicas' certificates")
	}
}

func (p *Peers) write(b *strings.Builder) {
	fmt.Fprintf(b, "peers:\n  listen: %s\n", scalar(p.Listen))
	if p.DNS != "" {
		fmt.Fprintf(b, "  dns: %s\n", scalar(p.DNS))
	} else {
		fmt.Fprintf(b, "  list: [%s]\n", scalars(p.List))
	}
	if t := p.TLS; t != nil {
		fmt.Fprintf(b, "  tls: {cert_file: %s, key_file: %s, ca_file: %s", scalar(t.CertFile), scalar(t.KeyFile), scalar(t.CAFile))
		if t.Name != "" {
			fmt.Fprintf(b, ", name: %s", scalar(t.Name))
		}
		b.WriteString("}\n")
	}
}
