package llmapi

import (
	"strings"

	"pointsman.dev/pointsman/internal/spelling"
)

// NearMiss returns the known name that is closest to name, or "" when none is
// close enough to be a slip: another case, a missing or extra organisation before
// the slash, or about one wrong letter in four.
func NearMiss(name string, known []string) string {
	if name == "" || len(name) > spelling.Most {
		return ""
	}
	plain := strings.ToLower(name)
	best, bestCost := "", max(len(name)/4, 1)+1
	for _, k := range known {
		if len(k) > spelling.Most {
			continue
		}
		other := strings.ToLower(k)
		cost := spelling.Distance(plain, other)
		if base(plain) == base(other) && base(plain) != "" {
			cost = min(cost, 1)
		}
		if cost < bestCost {
			best, bestCost = k, cost
		}
	}
	return best
}

// base is the part of a model name behind its organisation.
func base(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }
