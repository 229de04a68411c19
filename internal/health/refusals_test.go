package health

import (
	"testing"
	"time"
)

func TestRefusalsPenalty(t *testing.T) {
	// Answers in order: r refused, g good.
	for _, c := range []struct {
		name, own string
		siblings  []string
		after     time.Duration // since the last answer
		least     float64       // seconds
		most      float64
	}{
		{"nothing known", "", []string{""}, 0, 0, 0},
		{"one mistake", "r", []string{""}, 0, 0, 0},
		{"three mistakes of a client", "rrr", []string{"gg"}, 0, 0, 0},
		{"refuses all", "rrrrrrrr", []string{"gggg"}, 0, 3, refusalMost},
		{"refuses all, the sibling was not asked", "rrrrr", []string{""}, 0, 1, refusalMost},
		{"no end to it", "rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr", []string{"g"}, 0, 4, refusalMost},
		{"clients ask nonsense everywhere", "rrrrrrrr", []string{"rrrrrrrr"}, 0, 0, 0},
		{"everywhere, one had more", "rrrrrrrrrrrrrr", []string{"rrrr", "rrrr"}, 0, 0, 0},
		{"some mistakes", "grgrgrrgrg", []string{"gggg", "gggg"}, 0, 0, 0},
		{"two good answers show that it works again", "rrrrrrrrrrgg", []string{"gggg"}, 0, 0, 2},
		{"four end it", "rrrrrrrrrrgggg", []string{"gggg"}, 0, 0, 0},
		{"half after a while", "rrrrrrrrrrrrrrrrrrrrr", []string{"g"}, refusalHalf, 2, refusalMost / 2},
		{"over after a minute or so", "rrrrrrrrrrrrrrrrrrrrr", []string{"g"}, 70 * time.Second, 0, 0},
	} {
		now := time.Hour
		play := func(answers string) (r Refusals) {
			for _, a := range answers {
				r.Answered(now, a == 'r')
			}
			return r
		}
		own, sum := play(c.own), 0.0
		for _, s := range c.siblings {
			r := play(s)
			sum += r.Share()
		}
		got := own.Penalty(now+c.after, sum/float64(len(c.siblings)))
		if got < c.least || got > c.most {
			t.Errorf("%s: %.3f s, want %.3f to %.3f", c.name, got, c.least, c.most)
		}
	}
}
