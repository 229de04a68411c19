// Package shell splits text into words as a shell does. It runs and expands nothing.
package shell

import "strings"

// Word is one word of a script, without its quotes.
type Word struct {
	Text string
	Line int // on which it begins, from 1
}

// Split returns the words of a script, those of all its commands in one list: blanks, newlines and ; & | ( ) outside quotes separate them,
// comments and continued lines are left out. A quote that does not end takes the rest.
func Split(script string) []Word {
	l := lexer{text: script, line: 1}
	for l.at < len(l.text) {
		l.step()
	}
	l.end()
	return l.words
}

// lexer is where the splitting of a text is.
type lexer struct {
	text        string
	at          int
	line, start int  // of the place, of the word
	quote       byte // 0 outside quotes
	in          bool // a word has begun, maybe an empty one in quotes
	word        strings.Builder
	words       []Word
}

// step takes one character, or an escaped one, or a comment.
func (l *lexer) step() {
	c := l.text[l.at]
	l.at++
	if c == '\n' {
		l.line++
	}
	switch {
	case c == '\\' && l.quote != '\'' && l.at < len(l.text):
		l.escaped()
	case l.quote != 0 && c == l.quote:
		l.quote = 0
	case l.quote != 0:
		l.add(c)
	case c == '"' || c == '\'':
		l.begin()
		l.quote = c
	case strings.IndexByte(" \t\r\n;&|()", c) >= 0:
		l.end()
	case c == '#' && !l.in:
		comment, _, _ := strings.Cut(l.text[l.at:], "\n")
		l.at += len(comment)
	default:
		l.add(c)
	}
}

// escaped takes the character behind a backslash; a line that is continued is none.
func (l *lexer) escaped() {
	if c := l.text[l.at]; c != '\n' {
		l.add(c)
	} else {
		l.line++
	}
	l.at++
}

func (l *lexer) begin() {
	if !l.in {
		l.in, l.start = true, l.line
	}
}

func (l *lexer) add(c byte) {
	l.begin()
	l.word.WriteByte(c)
}

func (l *lexer) end() {
	if l.in {
		l.words = append(l.words, Word{l.word.String(), l.start})
		l.word.Reset()
		l.in = false
	}
}
