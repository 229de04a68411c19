package spelling

import (
	"slices"
	"strings"
)

// Name returns the known name, of a model for instance, that is closest to name, or "" when none is close enough to be a slip: another
// case, a missing or another organisation before the slash, or about one wrong letter in four. Names are long and many are alike, so it
// is stricter than Word.
func Name(name string, known []string) string {
	if name == "" || len(name) > Most {
		return ""
	}
	plain := strings.ToLower(name)
	best, least := "", max(len(name)/4, 1)+1
	for _, k := range known {
		if len(k) > Most {
			continue
		}
		other := strings.ToLower(k)
		n := Distance(plain, other)
		if base(plain) == base(other) && base(plain) != "" {
			n = min(n, 1)
		}
		if n < least {
			best, least = k, n
		}
	}
	return best
}

// base is the part of a model's name behind its organisation.
func base(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// Word returns the word of a few that text is probably a misspelling of, or "": one that begins with it or that it begins with, or the
// closest with no more than about one wrong letter in three.
func Word(text string, words []string) string {
	if slices.Contains(words, text) {
		return text
	}
	best, least := "", 1+max(1, len(text)/3)
	for _, w := range words {
		if len(text) >= 3 && (strings.HasPrefix(w, text) || strings.HasPrefix(text, w)) {
			return w
		}
		if n := Distance(text, w); n < least && n < len(w) {
			best, least = w, n
		}
	}
	return best
}
