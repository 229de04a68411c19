package extproc

import (
	"strings"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// Names in dynamic metadata.
const (
	metaPick   = "envoy.lb"
	metaSubset = "envoy.lb.subset_hint"
	keySubset  = "x-gateway-destination-endpoint-subset"
	keyServed  = "x-gateway-destination-endpoint-served"

	attributes = "envoy.filters.http.ext_proc" // where Envoy puts what response_attributes asks for
	keyAddress = "upstream.address"
)

// metadata is dynamic metadata to be set.
type metadata = *structpb.Struct

// hints takes the gateway's word on which endpoints the request may go to. It may come with any message of the request.
func (x *stream) hints(in *extprocv3.ProcessingRequest) {
	if x.Booked {
		return
	}
	if m := in.GetMetadataContext().GetFilterMetadata()[metaSubset]; m != nil {
		if v, ok := m.GetFields()[keySubset]; ok {
			x.Picked.Only = pool.NewSubset(texts(v))
		}
	}
	if x.set.Conformance && x.head.selection != "" {
		x.Picked.Only = pool.NewSubset(strings.Split(x.head.selection, ","))
	}
}

// texts are the addresses of a list, or of one text with commas.
func texts(v *structpb.Value) []string {
	list := v.GetListValue()
	if list == nil {
		return strings.Split(v.GetStringValue(), ",")
	}
	var all []string
	for _, item := range list.GetValues() {
		all = append(all, strings.Split(item.GetStringValue(), ",")...)
	}
	return all
}

// pickMetadata is the pick as the load balancer's metadata.
func (x *stream) pickMetadata(pick string) metadata {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		metaPick: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{headerDestination: structpb.NewStringValue(pick)}}),
	}}
}

// served reads which endpoint the request went to, "" if the gateway does not say.
func served(in *extprocv3.ProcessingRequest) string {
	if v := in.GetMetadataContext().GetFilterMetadata()[metaPick].GetFields()[keyServed]; v != nil {
		return v.GetStringValue()
	}
	return in.GetAttributes()[attributes].GetFields()[keyAddress].GetStringValue()
}

// follow moves the booking to where the request went.
func (x *stream) follow(in *extprocv3.ProcessingRequest) {
	at := strings.TrimSpace(served(in))
	if !x.Booked || at == "" || at == x.picks[0] {
		return
	}
	for _, p := range x.picks[1:] {
		if p == at {
			x.EndAttempt(telemetry.OutcomeUpstreamError)
			if x.Booking.Moved(at, true) {
				x.BeginAttempt()
			}
			return
		}
	}
	if x.Booking.Moved(at, false) {
		x.Rec.Endpoint = at
	}
	x.srv.misled.Do(func() {
		x.set.Log.Warn("requests go elsewhere than they are picked for: look at the override_host policy of Envoy's cluster, and at metadata_options.receiving_namespaces",
			"picked", x.picks[0], "served", at)
	})
}
