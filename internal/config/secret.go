package config

import "log/slog"

// Secret is a text that no log, error, dump or encoding shows. The zero value is no secret.
type Secret struct{ text string }

const hidden = "[hidden]"

// NewSecret wraps a text.
func NewSecret(text string) Secret { return Secret{text} }

// Reveal returns the text itself: for the place that sends it and for nothing else.
func (s Secret) Reveal() string { return s.text }

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s.text == "" }

// String returns a placeholder, or "" for the zero value.
func (s Secret) String() string {
	if s.text == "" {
		return ""
	}
	return hidden
}

// GoString is String, for %#v.
func (s Secret) GoString() string { return s.String() }

// LogValue is String, for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText is String, for encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
