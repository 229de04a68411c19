//go:build !linux

package app

import "context"

// keepAwake does nothing: what it avoids was measured on Linux only.
func keepAwake(context.Context) {}
