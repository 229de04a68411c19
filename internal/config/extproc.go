package config

import (
	"fmt"
	"strings"
)

// ExtProc is the external processor: an Envoy carries the requests and asks the gateway where each goes.
type ExtProc struct {
	// Listen (`extproc.listen`, default 0.0.0.0:9002) is the address that Envoy calls, gRPC over HTTP/2. Needs a restart to
	// change, as TLS does.
	Listen string

	// TLS (`extproc.tls`, default none) makes it speak TLS, with `cert_file` and `key_file` as those of Config.TLS. nil: cleartext
	// HTTP/2.
	TLS *TLS

	// OtherPaths (`extproc.other_paths`, default false) lets requests through that are for no API of a model server; an endpoint
	// is picked by load alone. Engine control paths are among them.
	OtherPaths bool

	// Conformance (`extproc.conformance`, default false) obeys the request header by which the conformance suite of the Gateway API
	// inference extension chooses endpoints, and tells in the answer which one served. Never for users.
	Conformance bool
}

// defaultExtProcListen is what the processor listens on unless told otherwise.
const defaultExtProcListen = "0.0.0.0:9002"

func extProcFields(p *ExtProc) []field {
	return []field{
		{"listen", func(d *decoder, v value) { d.address(v, &p.Listen) }},
		{"tls", func(d *decoder, v value) { p.TLS = new(TLS); d.object(v, tlsFields(p.TLS)) }},
		{"other_paths", func(d *decoder, v value) { d.boolean(v, &p.OtherPaths) }},
		{"conformance", func(d *decoder, v value) { d.boolean(v, &p.Conformance) }},
	}
}

// checkExtProc demands a socket of its own, and a certificate and key that belong together.
func (d *decoder) checkExtProc(c *Config) {
	item, ok := d.seen["extproc"]
	if !ok || item.kind != kindMap {
		return
	}
	for _, other := range []string{"listen", "admin", "peers.listen"} {
		is, there := ownAddresses(c)[other]
		if !there || d.failed(other) || d.failed("extproc.listen") || !sameSocket(c.ExtProc.Listen, is) {
			continue
		}
		at := d.top(other)
		if v, set := d.seen["extproc.listen"]; set {
			at = v
		}
		d.fail(at, "the same socket for "+other+", "+is+", and for extproc.listen, "+c.ExtProc.Listen, "give extproc.listen a port of its own")
	}
	if v, set := d.seen["extproc.conformance"]; set && c.ExtProc.Conformance {
		d.warn(v, "every client may choose the endpoint, and is told which one served", "keep it for the conformance suite")
	}
	files, ok := d.seen["extproc.tls"]
	if !ok || files.kind != kindMap {
		return
	}
	d.required(files, "cert_file", "TLS needs a certificate")
	d.required(files, "key_file", "TLS needs the certificate's key")
	if t := c.ExtProc.TLS; t.CertFile != "" && t.KeyFile != "" {
		d.checkPair("extproc.tls.", t.CertFile, t.KeyFile)
	}
}

func (p *ExtProc) write(b *strings.Builder) {
	fmt.Fprintf(b, "extproc:\n  listen: %s\n", scalar(p.Listen))
	if p.TLS != nil {
		fmt.Fprintf(b, "  tls: {cert_file: %s, key_file: %s}\n", scalar(p.TLS.CertFile), scalar(p.TLS.KeyFile))
	}
	fmt.Fprintf(b, "  other_paths: %t\n  conformance: %t\n", p.OtherPaths, p.Conformance)
}
