package extproc

import (
	"context"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// health answers the standard health service. A processor is ready from the moment that it knows a usable endpoint, and stays so until
// it leaves: it refuses better than a gateway that has lost its picker.
type health struct {
	healthv1.UnimplementedHealthServer
	ready   func() bool
	was     atomic.Bool // ready has been true
	leaving atomic.Bool
	over    context.Context // ends the watches
}

// The names that are asked for. Kubernetes has one probe for each of the first two.
const (
	healthLiveness  = "liveness"
	healthReadiness = "readiness"
)

// watchEvery is how often a watched state is looked at.
const watchEvery = 100 * time.Millisecond

func (h *health) leave() { h.leaving.Store(true) }

// status is the state of a name; false for one that nobody knows.
func (h *health) status(name string) (healthv1.HealthCheckResponse_ServingStatus, bool) {
	switch name {
	case healthLiveness:
		return healthv1.HealthCheckResponse_SERVING, true
	case healthReadiness, extprocv3.ExternalProcessor_ServiceDesc.ServiceName, "":
		if h.leaving.Load() || !h.was.Load() && !h.ready() {
			return healthv1.HealthCheckResponse_NOT_SERVING, true
		}
		h.was.Store(true)
		return healthv1.HealthCheckResponse_SERVING, true
	}
	return healthv1.HealthCheckResponse_SERVICE_UNKNOWN, false
}

// Check implements the health service.
func (h *health) Check(_ context.Context, r *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	st, known := h.status(r.GetService())
	if !known {
		return nil, status.Error(codes.NotFound, "unknown service")
	}
	return &healthv1.HealthCheckResponse{Status: st}, nil
}

// Watch implements the health service.
func (h *health) Watch(r *healthv1.HealthCheckRequest, out grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	last := healthv1.HealthCheckResponse_UNKNOWN
	for {
		if st, _ := h.status(r.GetService()); st != last {
			last = st
			if err := out.Send(&healthv1.HealthCheckResponse{Status: st}); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-h.over.Done():
			return status.Error(codes.Unavailable, "the processor ends")
		case <-out.Context().Done():
			return out.Context().Err()
		}
	}
}
