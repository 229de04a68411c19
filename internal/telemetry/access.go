package telemetry

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Access writes one line per finished request to a logger, at level info, or warn where the outcome is not the client's
// (upstream_error, cut, timeout, shed, no_endpoint). Keys are the words of the config file and the metrics; times are
// seconds. It has nothing to write prompts, answers or keys from.
type Access struct {
	log   *slog.Logger
	salt  *Salt
	lost  prometheus.Counter // records that could not be written
	attrs sync.Pool          // *[]slog.Attr
}

// NewAccess returns an Access that writes to log; nil switches it off.
func NewAccess(log *slog.Logger) *Access {
	a := &Access{log: log}
	a.attrs.New = func() any { s := make([]slog.Attr, 0, 32); return &s }
	return a
}

// WithPrefixes makes records say which pieces of a prompt others have too, by hashes under salt; nil: they do not. It returns a.
func (a *Access) WithPrefixes(salt *Salt) *Access {
	a.salt = salt
	return a
}

// CountLost makes m count the records that could not be written. It returns a.
func (a *Access) CountLost(m *Metrics) *Access {
	a.lost = m.lostRecords
	return a
}

// Log writes the access record of r. Fields that do not apply are left out, so that a line says only what
// is known. It costs about two microseconds (BenchmarkAccess).
func (a *Access) Log(r *Record) {
	if a == nil || a.log == nil {
		return
	}
	level := slog.LevelInfo
	if failed(r.Outcome) {
		level = slog.LevelWarn
	}
	if !a.log.Enabled(context.Background(), level) {
		return
	}
	buf := a.attrs.Get().(*[]slog.Attr)
	attrs := appendIdentity((*buf)[:0], r)
	attrs = appendNumbers(attrs, r)
	if a.salt != nil {
		attrs = appendString(attrs, "prefix", a.salt.pieces(r.Blocks))
	}
	line := slog.NewRecord(time.Now(), level, "request", 0)
	line.AddAttrs(attrs...)
	// Not by way of the logger, which keeps to itself that a disk is full.
	if err := a.log.Handler().Handle(context.Background(), line); err != nil && a.lost != nil {
		a.lost.Inc()
	}
	clear(attrs)
	*buf = attrs
	a.attrs.Put(buf)
}

func appendIdentity(attrs []slog.Attr, r *Record) []slog.Attr {
	attrs = append(attrs, slog.String("request_id", r.ID))
	attrs = appendString(attrs, "method", r.Method)
	attrs = appendString(attrs, "path", r.Path)
	attrs = appendString(attrs, "unknown_path", harmless(r.UnknownPath))
	attrs = appendString(attrs, "model", r.Model)
	if r.Served != r.Model {
		attrs = appendString(attrs, "served_model", r.Served)
	}
	attrs = appendString(attrs, "pool", r.Pool)
	attrs = appendString(attrs, "endpoint", r.Endpoint)
	attrs = appendString(attrs, "pick_reason", r.PickReason)
	attrs = appendString(attrs, "window", r.Window)
	attrs = appendString(attrs, "refused_by", r.RefusedBy)
	attrs = appendString(attrs, "retry_reached", r.Reached)
	attrs = append(attrs, slog.String("outcome", r.Outcome))
	attrs = appendInt(attrs, "status", r.Status)
	attrs = appendString(attrs, "error_reason", r.ErrorReason)
	return appendString(attrs, "cause", r.Cause)
}

func appendNumbers(attrs []slog.Attr, r *Record) []slog.Attr {
	attrs = append(attrs, slog.Bool("stream", r.Stream))
	if r.Attempts != 1 {
		attrs = append(attrs, slog.Int("attempts", r.Attempts))
	}
	if r.Pool != "" {
		attrs = append(attrs, slog.Int("prompt_tokens", r.PromptTokens), slog.Int("predicted_hit_tokens", r.PredictedHit))
		if r.CachedTokens >= 0 {
			attrs = append(attrs, slog.Int("actual_hit_tokens", r.CachedTokens))
		}
		attrs = append(attrs, slog.Int("output_tokens", r.OutputTokens))
	}
	attrs = append(attrs, slog.Int64("bytes_in", r.BytesIn), slog.Int64("bytes_out", r.BytesOut))
	if r.PickTime > 0 {
		attrs = append(attrs, seconds("pick_seconds", r.PickTime))
	}
	if r.Queued > 0 {
		attrs = append(attrs, seconds("queued_seconds", r.Queued))
	}
	if r.TTFT > 0 {
		attrs = append(attrs, seconds("ttft_seconds", r.TTFT))
	}
	return append(attrs, seconds("duration_seconds", r.Duration))
}

// seconds keeps microseconds: more digits are noise, and shorter numbers cost less to write and to read.
func seconds(key string, d time.Duration) slog.Attr {
	return slog.Float64(key, float64(d.Microseconds())/1e6)
}

func appendString(attrs []slog.Attr, key, value string) []slog.Attr {
	if value == "" {
		return attrs
	}
	return append(attrs, slog.String(key, value))
}

func appendInt(attrs []slog.Attr, key string, value int) []slog.Attr {
	if value == 0 {
		return attrs
	}
	return append(attrs, slog.Int(key, value))
}

// Bounds of what is shown of a path that somebody made up.
const (
	pathMost  = 64 // bytes
	idAtLeast = 16 // bytes of a segment of letters and digits that may be a key
)

// harmless is what may be logged of a path that a client made up: its beginning, up to the first character that a path of an
// API does not have. So there is no query in it, however it is spelt, and nothing that a log or a terminal would
// take for its own. A segment that may be a key is shown as a star.
func harmless(path string) string {
	if path == "" {
		return ""
	}
	end := 0
	for end < len(path) && end < pathMost && inPath(path[end]) {
		end++
	}
	more := end < len(path)
	segments := strings.Split(path[:end], "/")
	for i, s := range segments {
		if len(s) >= idAtLeast && strings.ContainsAny(s, "0123456789") || strings.HasPrefix(s, "sk-") {
			segments[i] = "*"
		}
	}
	shown := strings.Join(segments, "/")
	if more {
		shown += "..."
	}
	return shown
}

func inPath(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("/._-:", c) >= 0
}
