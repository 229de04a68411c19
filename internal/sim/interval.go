package sim

import "math"

// student holds the 97.5 % points of Student's distribution for 1 to 10 degrees of freedom.
var student = [...]float64{12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228}

// Interval returns the mean of v and half the width of its 95 % confidence interval.
func Interval(v []float64) (mean, half float64) {
	n := float64(len(v))
	for _, x := range v {
		mean += x / n
	}
	if len(v) < 3 { // of two the interval says nothing
		return mean, 0
	}
	squares := 0.0
	for _, x := range v {
		squares += (x - mean) * (x - mean)
	}
	t := 1.96 + 2.7/(n-1)
	if len(v)-2 < len(student) {
		t = student[len(v)-2]
	}
	return mean, t * math.Sqrt(squares/(n-1)/n)
}
