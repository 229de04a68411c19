package kube

import (
	"os"
	"strings"

	scripts "pointsman.dev/pointsman/internal/shell"
)

const (
	// maxExpansion bounds the bytes that variables put into one container's command line: a few of them, each twice the one before,
	// would be larger than any memory.
	maxExpansion = 1 << 18
	// maxScripts is how deep scripts may stand in words of scripts: sh -c "bash -c 'vllm serve'".
	maxScripts = 4
)

// shell takes a command line apart as the kubelet and then a shell do, as far as flags are concerned: nothing is run, and every branch
// counts.
type shell struct {
	env   map[string]string // known variables, those that a script sets included
	room  int               // bytes that variables may still put in
	words []string
}

// value is what a variable puts in; "" when there is no room left.
func (s *shell) value(text string) string {
	if s.room -= len(text); s.room < 0 {
		return ""
	}
	return text
}

// kubelet replaces $(NAME) by a variable that is known, and $$ by $, as the kubelet does.
func (s *shell) kubelet(text string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		if after, escaped := strings.CutPrefix(rest, "$"); escaped {
			b.WriteByte('$')
			text = after
			continue
		}
		text = rest
		if inner, open := strings.CutPrefix(rest, "("); open {
			name, after, closed := strings.Cut(inner, ")")
			if value, known := s.env[name]; closed && known {
				b.WriteString(s.value(value))
				text = after
				continue
			}
		}
		b.WriteByte('$')
	}
}

// script adds the words of a text. An argument that is one word is a script of one word.
func (s *shell) script(text string, depth int) {
	for _, w := range scripts.Split(text) {
		word := w.Text
		if name, value, ok := strings.Cut(word, "="); ok && isName(name) {
			s.env[name] = s.expand(value)
			continue
		}
		word = s.expand(word)
		if depth < maxScripts && strings.ContainsAny(word, " \t\n;\"'") {
			s.script(word, depth+1) // of sh -c or eval, or a variable with several flags
			continue
		}
		s.words = append(s.words, word)
	}
}

// expand replaces $NAME, ${NAME} and ${NAME:-otherwise}. A variable that is not known is empty.
func (s *shell) expand(word string) string {
	return os.Expand(word, func(name string) string {
		end := 0
		for end < len(name) && isName(name[:end+1]) {
			end++
		}
		value := s.env[name[:end]]
		if otherwise := strings.TrimPrefix(name[end:], ":"); value == "" && otherwise != "" && (otherwise[0] == '-' || otherwise[0] == '=') {
			value = s.expand(otherwise[1:])
		}
		return s.value(value)
	})
}

// isName reports whether a text can be the name of a shell's variable.
func isName(text string) bool {
	for i := range len(text) {
		c := text[i]
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return text != ""
}
