//go:build race

package proxy

// raceDetector: memory and time are not those of the product.
const raceDetector = true
