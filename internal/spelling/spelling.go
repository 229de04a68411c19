// Package spelling measures how far a word is from another one, for errors that name the word that was probably meant.
package spelling

// Most is the length, in bytes, up to which words are compared: the work grows with the square.
const Most = 128

// Distance is the number of bytes to insert, delete, replace or swap with their neighbour to make a into b. It allocates nothing. Words longer
// than Most are far from everything: their distance is that of the longer one's length.
func Distance(a, b string) int {
	if len(a) > Most || len(b) > Most {
		return max(len(a), len(b))
	}
	var rows [3][Most + 1]int
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
