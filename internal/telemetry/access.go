package telemetry

import (
	"context"
	"log/slog"
)

// Access writes one line per finished request to a logger, at level info.
type Access struct{ log *slog.Logger }

// NewAccess returns an Access that writes to log; nil switches it off.
func NewAccess(log *slog.Logger) *Access { return &Access{log: log} }

// Log writes the access record of r. Fields that do not apply are left out.
func (a *Access) Log(r *Record) {
	if a == nil || a.log == nil || !a.log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	a.log.LogAttrs(context.Background(), slog.LevelInfo, "request", slog.String("id", r.ID), slog.String("outcome", r.Outcome))
}
