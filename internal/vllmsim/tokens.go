package vllmsim

import (
	"encoding/binary"
	"math/bits"
	"strings"
	"unicode/utf8"
)

// pieceBytes is the length of a token's text. English text on real tokenizers comes to about four bytes per token.
const pieceBytes = 4

// lexicon turns text into token ids and invents generated text. The recorded tokenizer of the tests is the other one.
type lexicon interface {
	// encode returns the ids of a rendered prompt. Segments are cut independently, so that a conversation's next turn begins
	// with exactly the tokens of this one, the answer's included.
	encode(segments []string) []uint32
	// text returns what a token id stands for.
	text(id uint32) string
	// vocab is the number of token ids.
	vocab() int64
	// generate returns token i of the answer with this seed.
	generate(seed uint64, i int) (id uint32, text string)
}

// pieces is the default lexicon: a token is the next four bytes of its segment, and its id holds those bytes, so that an
// id says what it stands for, equal text has equal ids and no table is needed.
type pieces struct{}

func (pieces) encode(segments []string) []uint32 {
	size := 0
	for _, seg := range segments {
		size += (len(seg) + pieceBytes - 1) / pieceBytes
	}
	ids := make([]uint32, 0, size)
	for _, seg := range segments {
		for len(seg) > 0 {
			n := min(pieceBytes, len(seg))
			ids = append(ids, pieceID(seg[:n]))
			seg = seg[n:]
		}
	}
	return ids
}

func (pieces) vocab() int64 { return 1 << 32 }

func pieceID(piece string) uint32 {
	var b [pieceBytes]byte
	copy(b[:], piece)
	return binary.LittleEndian.Uint32(b[:])
}

func (pieces) text(id uint32) string {
	var b [pieceBytes]byte
	binary.LittleEndian.PutUint32(b[:], id)
	return strings.ToValidUTF8(strings.TrimRight(string(b[:]), "\x00"), "\uFFFD")
}

// The generated text is made of these; every one is pieceBytes long.
const vocabulary = " the" + " and" + " of " + "to a" + " in " + "that" + " is " + " for" + " it " + "with" + " as " + "was " + "on a" + "ing " + "tion" + " be " +
	"this" + " at " + "from" + " by " + " not" + " are" + " but" + " had" + " his" + "they" + " she" + " or " + "have" + " an " + " one" + ". In"

func (pieces) generate(seed uint64, i int) (uint32, string) {
	n := uint64(len(vocabulary) / pieceBytes)
	h, _ := bits.Mul64(mix(seed+uint64(i)*0x9e3779b97f4a7c15), n)
	piece := vocabulary[h*pieceBytes : (h+1)*pieceBytes]
	return pieceID(piece), piece
}

// mix is the finaliser of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// scripted is a lexicon whose answers are one given text: tool calls and structured output.
type scripted struct {
	lexicon
	answer string
}

func (s scripted) generate(_ uint64, i int) (uint32, string) {
	from := min(i*pieceBytes, len(s.answer))
	piece := s.answer[from:min(from+pieceBytes, len(s.answer))]
	return pieceID(piece), piece
}

func (s scripted) tokens() int { return (len(s.answer) + pieceBytes - 1) / pieceBytes }

// segmentChars counts the characters of a rendered prompt.
func segmentChars(segments []string) int {
	n := 0
	for _, seg := range segments {
		n += utf8.RuneCountInString(seg)
	}
	return n
}
