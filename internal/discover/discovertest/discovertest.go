// Package discovertest is the suite that every discover.Discoverer passes.
package discovertest
