package flight

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"
)

// routingHeaders are prefixes of names that steer gateways and engines past their own decision. A client that could set
// them would choose the data-parallel rank, the prefill peer or the worker behind our back.
var routingHeaders = []string{
	"X-Pointsman-",     // ours
	"X-Gateway-",       // Gateway API inference extension: x-gateway-destination-endpoint, x-gateway-inference-*
	"X-Data-Parallel-", // vLLM: x-data-parallel-rank
	"X-Prefiller-",     // llm-d: x-prefiller-host-port
	"X-Encoder-",       // llm-d: x-encoder-hosts-ports
	"X-Smg-",           // SGLang model gateway: target worker, routing key
	"X-Vllm-Router-",
	"X-Sglang-Router-",
}

// privateHeaders are prefixes of names in answers that tell of the endpoint behind.
var privateHeaders = []string{
	"X-Pointsman-", // ours to say
	"X-Gateway-",
	"X-Data-Parallel-",
	"Endpoint-Load-Metrics", // ORCA load report, for us and not for clients
}

// Routing reports whether a request header, in any case, is not a client's to set.
func Routing(name string) bool { return reserved(name, routingHeaders) }

// Private reports whether a response header, in any case, is not for clients.
func Private(name string) bool { return reserved(name, privateHeaders) }

// reserved reports whether a header name begins with one of prefixes. Most names fail at the first letter.
func reserved(name string, prefixes []string) bool {
	if name == "" || name[0]|0x20 != 'x' && name[0]|0x20 != 'e' {
		return false
	}
	for _, p := range prefixes {
		if len(name) >= len(p) && strings.EqualFold(name[:len(p)], p) {
			return true
		}
	}
	return false
}

// maxRequestID bounds a client's request id: engines build their own ids from it.
const maxRequestID = 128

// NewID returns a new request id, 24 hexadecimal digits.
func NewID() string {
	var raw [12]byte
	binary.LittleEndian.PutUint64(raw[:], rand.Uint64())
	binary.LittleEndian.PutUint32(raw[8:], rand.Uint32())
	var text [24]byte
	hex.Encode(text[:], raw[:])
	return string(text[:])
}

// SaneID accepts what is safe in logs, URLs and engines: letters, digits and a few marks.
func SaneID(s string) bool {
	if s == "" || len(s) > maxRequestID {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("-_.:/+=@~", c) >= 0:
		default:
			return false
		}
	}
	return true
}
