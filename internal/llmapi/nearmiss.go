package llmapi

import "strings"

// maxName bounds the names that are compared: the work grows with the square.
const maxName = 128

// NearMiss returns the known name that is closest to name, or "" when none is
// close enough to be a slip: another case, a missing or extra organisation before
// the slash, or about one wrong letter in four.
func NearMiss(name string, known []string) string {
	if name == "" || len(name) > maxName {
		return ""
	}
	plain := strings.ToLower(name)
	best, bestCost := "", max(len(name)/4, 1)+1
	for _, k := range known {
		if len(k) > maxName {
			continue
		}
		other := strings.ToLower(k)
		cost := distance(plain, other)
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

// distance is the number of letters to insert, delete, replace or swap with their
// neighbour to make a into b.
func distance(a, b string) int {
	var rows [3][maxName + 1]int
	before, prev, cur := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev, cur = prev, cur, before
	}
	return prev[len(b)]
}
