package vllmsim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fault kinds. The first group acts on one generating request, the second on the whole server.
const (
	FaultReset    = "reset"     // cut the connection with a TCP reset: after=N frames of a stream, else before the headers
	FaultEarlyEnd = "early-end" // end the response cleanly before its terminal marker: after=N frames
	FaultCut      = "cut"       // drop the connection without the last chunk: after=N frames, else before the headers
	FaultHang     = "hang"      // no further byte until the client leaves: after=N frames, else before the headers
	FaultStatus   = "status"    // answer this status at once; written 500 or 503, with retry-after=SECONDS
	FaultSlow     = "slow"      // wait this long before anything: slow=2s

	FaultSlowdown      = "slowdown"       // every step takes this factor longer, nothing in the metrics: slowdown=10
	FaultSlowMetrics   = "slow-metrics"   // /metrics answers after this delay: slow-metrics=2s
	FaultFreezeMetrics = "freeze-metrics" // /metrics repeats the page of this moment
	FaultFailMetrics   = "fail-metrics"   // /metrics answers 500
	FaultRefuse        = "refuse"         // the port is closed: new connections are refused, open ones go on
	FaultZombie        = "zombie"         // the engine stops, the front-end lives: /health 200, gauges frozen, requests hang
	FaultEngineDead    = "engine-dead"    // the engine process is killed; there is no way back
	FaultTerminate     = "terminate"      // what SIGTERM does; there is no way back
)

// Fault is one scripted misbehaviour. The zero value is no fault.
type Fault struct {
	Kind       string        // one of the Fault constants
	Status     int           // FaultStatus: 400..599
	After      int           // frames of a stream that are sent first; -1 = before the headers
	Factor     float64       // FaultSlowdown: > 0
	Delay      time.Duration // FaultSlow, FaultSlowMetrics
	RetryAfter time.Duration // FaultStatus: the Retry-After header; 0 = none
	For        time.Duration // how long the fault is armed on the server; 0 = until cleared
	Count      int           // how many requests it hits; 0 = any number
}

// ParseFault reads "name", "name=value" or "name=value;key=value...": "reset;after=3", "slow=2s", "503;retry-after=1",
// "slowdown=10;for=5s", "500;count=3". The error names the part that is wrong.
func ParseFault(spec string) (Fault, error) {
	f := Fault{After: -1}
	head, rest, _ := strings.Cut(spec, ";")
	name, value, hasValue := strings.Cut(strings.TrimSpace(head), "=")
	f.Kind = name
	if status, err := strconv.Atoi(name); err == nil {
		if status < 400 || status > 599 {
			return f, fmt.Errorf("parsing fault %q: status must be 400 to 599", spec)
		}
		f.Kind, f.Status = FaultStatus, status
	} else if !slices.Contains(faultKinds(), name) {
		return f, fmt.Errorf("parsing fault %q: unknown fault %q, known: 400..599 %s", spec, name, strings.Join(faultKinds(), " "))
	}
	if err := f.setValue(value, hasValue); err != nil {
		return f, fmt.Errorf("parsing fault %q: %w", spec, err)
	}
	for opt := range strings.SplitSeq(rest, ";") {
		if opt = strings.TrimSpace(opt); opt == "" {
			continue
		}
		key, val, _ := strings.Cut(opt, "=")
		if err := f.setOption(key, val); err != nil {
			return f, fmt.Errorf("parsing fault %q: %w", spec, err)
		}
	}
	return f, nil
}

func faultKinds() []string {
	return []string{FaultReset, FaultEarlyEnd, FaultCut, FaultHang, FaultSlow, FaultSlowdown, FaultSlowMetrics, FaultFreezeMetrics,
		FaultFailMetrics, FaultRefuse, FaultZombie, FaultEngineDead, FaultTerminate}
}

func (f *Fault) setValue(value string, hasValue bool) (err error) {
	switch f.Kind {
	case FaultSlow, FaultSlowMetrics:
		f.Delay, err = time.ParseDuration(value)
	case FaultSlowdown:
		if f.Factor, err = strconv.ParseFloat(value, 64); err == nil && !(f.Factor > 0) {
			err = fmt.Errorf("factor %q: must be above 0", value)
		}
	default:
		if hasValue {
			err = fmt.Errorf("%s takes no value", f.Kind)
		}
	}
	return err
}

func (f *Fault) setOption(key, value string) (err error) {
	switch key {
	case "after":
		f.After, err = strconv.Atoi(value)
	case "count":
		f.Count, err = strconv.Atoi(value)
	case "for":
		f.For, err = time.ParseDuration(value)
	case "retry-after":
		var seconds float64
		seconds, err = strconv.ParseFloat(value, 64)
		f.RetryAfter = time.Duration(seconds * float64(time.Second))
	default:
		err = fmt.Errorf("unknown option %q, known: after, count, for, retry-after", key)
	}
	return err
}
