package peers

import (
	"crypto/rand"
	"fmt"

	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/peers/wire"
)

// The protocol. A peer of another major is refused; a higher minor adds what lower ones pass over.
const (
	major = 1
	minor = 0
)

// newInstance names this process.
func newInstance() []byte {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // it ends the process rather than fail
	return id
}

// hashing is what this release makes of a probe prompt. Replicas that differ here would take each other's prefixes for unknown
// ones, or worse.
func hashing() (uint64, error) {
	const probe = `{"model":"probe","tools":[{"type":"function"}],"messages":[{"role":"system","content":"a system prompt"},` +
		`{"role":"user","content":[{"type":"text","text":"and a question that is longer than one block of the chain would be, which takes a while: ` +
		`0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789"}]}]}`
	api, refused := llmapi.Lookup("POST", "/v1/chat/completions")
	if refused != nil {
		return 0, fmt.Errorf("hashing the probe prompt: %w", refused)
	}
	var s llmapi.Scanner
	s.Reset(api)
	if err := s.Write([]byte(probe)); err != nil {
		return 0, fmt.Errorf("hashing the probe prompt: %w", err)
	}
	r, err := s.Close()
	if err != nil {
		return 0, fmt.Errorf("hashing the probe prompt: %w", err)
	}
	return r.Blocks[len(r.Blocks)-1].Hash, nil
}

// incompatibleError says that a peer speaks another version.
type incompatibleError struct {
	major   uint32
	release string
}

// Error implements error.
func (e *incompatibleError) Error() string {
	return fmt.Sprintf("greeting a peer: it speaks version %d of the exchange (release %q), and this replica version %d", e.major, e.release, major)
}

// greet checks what the other end says of itself.
func greet(h *wire.Hello) error {
	switch {
	case h == nil || len(h.GetInstance()) != 16 || len(h.GetRelease()) > 128:
		return fmt.Errorf("greeting a peer: %w", errBounds)
	case h.GetMajor() != major:
		return &incompatibleError{h.GetMajor(), h.GetRelease()}
	}
	return nil
}
