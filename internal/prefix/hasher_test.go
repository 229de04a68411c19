package prefix

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// part is one call of a Hasher: text, then a boundary or an opaque thing.
type part struct {
	text   string
	cut    bool
	opaque uint64
}

func hashParts(h *Hasher, split func(n int) int, parts ...part) []Block {
	h.Reset()
	for _, p := range parts {
		b := []byte(p.text)
		for len(b) > 0 {
			n := split(len(b))
			h.Write(b[:n])
			b = b[n:]
		}
		if p.opaque != 0 {
			h.Opaque(1, p.opaque, 100)
		}
		if p.cut {
			h.Cut()
		}
	}
	return h.Blocks(7, nil)
}

func whole(n int) int { return n }

func TestHasherAnySplitGivesTheSameBlocks(t *testing.T) {
	long := string(bytes.Repeat([]byte("abcdefghij"), 100))
	parts := []part{{text: long, cut: true}, {text: "hi", cut: true}, {text: long[:256], cut: true}, {opaque: 9}, {text: long}}
	var h Hasher
	want := hashParts(&h, whole, parts...)
	if n := want[len(want)-1].End; n != int32(2*1000+2+256+100) {
		t.Errorf("chain ends at %d bytes, want %d", n, 2*1000+2+256+100)
	}
	for size := 1; size <= 600; size++ {
		got := hashParts(&h, func(n int) int { return min(n, size) }, parts...)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("chunks of %d bytes: %s", size, d)
		}
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		got := hashParts(&h, func(n int) int { return 1 + rnd.IntN(n) }, parts...)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("random chunks: %s", d)
		}
	}
}

func TestHasherWriteByteEqualsWrite(t *testing.T) {
	text := bytes.Repeat([]byte("x1y"), 300)
	var a, b Hasher
	a.Write(text)
	for _, c := range text {
		if err := b.WriteByte(c); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(a.Blocks(1, nil), b.Blocks(1, nil)); d != "" {
		t.Error(d)
	}
}

// TestHasherNextTurnContinues: all blocks of a conversation's first turn, also the
// short last one, are the leading blocks of its second turn.
func TestHasherNextTurnContinues(t *testing.T) {
	system := string(bytes.Repeat([]byte("be kind. "), 200))
	var h Hasher
	first := hashParts(&h, whole, part{text: system, cut: true}, part{text: "hello?", cut: true})
	second := hashParts(&h, whole, part{text: system, cut: true}, part{text: "hello?", cut: true}, part{text: "yes", cut: true}, part{text: "bye", cut: true})
	if d := cmp.Diff(first, second[:len(first)]); d != "" {
		t.Error(d)
	}
	other := hashParts(&h, whole, part{text: system, cut: true}, part{text: "hello!", cut: true})
	if n := len(first) - 1; !cmp.Equal(first[:n], other[:n]) || first[n].Hash == other[n].Hash {
		t.Error("another question must share the system prompt and nothing else")
	}
}

func TestHasherDistinguishes(t *testing.T) {
	var h Hasher
	seen := map[uint64]string{}
	add := func(name string, blocks []Block) {
		t.Helper()
		last := blocks[len(blocks)-1].Hash
		if prev, ok := seen[last]; ok {
			t.Errorf("%s has the hash of %s", name, prev)
		}
		seen[last] = name
	}
	add("ab", hashParts(&h, whole, part{text: "ab"}))
	add("a|b", hashParts(&h, whole, part{text: "a", cut: true}, part{text: "b"}))
	add("ba", hashParts(&h, whole, part{text: "ba"}))
	add("image 1", hashParts(&h, whole, part{opaque: 1}))
	add("image 2", hashParts(&h, whole, part{opaque: 2}))
	add("image 1 twice", hashParts(&h, whole, part{opaque: 1}, part{opaque: 1}))
	add("image 1, 2", hashParts(&h, whole, part{opaque: 1}, part{opaque: 2}))
	add("image 2, 1", hashParts(&h, whole, part{opaque: 2}, part{opaque: 1}))
	h.Reset()
	h.Opaque(2, 1, 100)
	add("sound 1", h.Blocks(7, nil))
	h.Reset()
	h.Write([]byte("ab"))
	add("ab, other seed", h.Blocks(8, nil))
}

func TestHasherBlocksAfterContinues(t *testing.T) {
	var system, turn Hasher
	system.Write([]byte("system"))
	turn.Write([]byte("turn"))
	chain, last := system.BlocksAfter(5, 10, nil)
	chain, _ = turn.BlocksAfter(last, 16, chain)
	if len(chain) != 2 || chain[0].End != 16 || chain[1].End != 20 {
		t.Errorf("chain %v, want ends at 16 and 20", chain)
	}
	if chain[0].Hash != last {
		t.Error("the second text must continue the hash that the first ended in")
	}
	system.Write([]byte("!"))
	_, other := system.BlocksAfter(5, 10, nil)
	moved, _ := turn.BlocksAfter(other, 17, nil)
	if moved[0].Hash == chain[1].Hash {
		t.Error("another system prompt must change what follows")
	}
}

// TestMixHasNoShortCycles draws sequential inputs, the worst case for a weak mixer.
func TestMixHasNoShortCycles(t *testing.T) {
	seen := make(map[uint64]bool)
	for a := range uint64(300) {
		for b := range uint64(300) {
			seen[mix(a, b)] = true
		}
	}
	if len(seen) != 300*300 {
		t.Errorf("%d collisions in %d", 300*300-len(seen), 300*300)
	}
}

// BenchmarkHasher100kB is the hashing of a prompt of 100 kB, half of what scan and hash may take together. Budget: 50 us.
func BenchmarkHasher100kB(b *testing.B) {
	text := bytes.Repeat([]byte("0123456789abcdef"), 6400)
	var h Hasher
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	var dst []Block
	for b.Loop() {
		h.Reset()
		h.Write(text)
		dst = h.Blocks(1, dst[:0])
	}
}
