package telemetry

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"

	"pointsman.dev/pointsman/internal/prefix"
)

// pieceBytes is how much of a prompt one piece of an access record stands for, at least, save the last.
const pieceBytes = 2048

// Salt turns block hashes into names that say which prompts begin alike, and nothing of what they say: without the key, nobody can
// try texts. It may be shared.
type Salt struct{ block cipher.Block }

// NewSalt returns a Salt with a random key that is nowhere else.
func NewSalt() (*Salt, error) {
	var key [16]byte
	_, _ = rand.Read(key[:]) // it does not return without: crypto/rand ends the program
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, fmt.Errorf("making the key of prefix hashes: %w", err)
	}
	return &Salt{block}, nil
}

// pieces writes a chain as "name:bytes name:bytes ...", one piece per 2 KiB and one for the rest. Where a piece ends depends on
// what precedes it alone, so prompts that begin alike have the same first pieces.
func (s *Salt) pieces(chain []prefix.Block) string {
	var out []byte
	written := int32(0)
	for i, b := range chain {
		if i < len(chain)-1 && b.End/pieceBytes == written/pieceBytes {
			continue
		}
		if len(out) > 0 {
			out = append(out, ' ')
		}
		out = s.name(out, b.Hash)
		out = append(out, ':')
		out = strconv.AppendInt(out, int64(b.End-written), 10)
		written = b.End
	}
	return string(out)
}

// name appends 16 hexadecimal digits that stand for hash.
func (s *Salt) name(dst []byte, hash uint64) []byte {
	var in, out [aes.BlockSize]byte
	binary.BigEndian.PutUint64(in[:], hash)
	s.block.Encrypt(out[:], in[:])
	return hex.AppendEncode(dst, out[:8])
}
