package extproc

import (
	"strings"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"pointsman.dev/pointsman/internal/pool"
)

// Names in dynamic metadata.
const (
	metaPick   = "envoy.lb"
	metaSubset = "envoy.lb.subset_hint"
	keySubset  = "x-gateway-destination-endpoint-subset"
	keyServed  = "x-gateway-destination-endpoint-served"
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

// pick is where the request may go, best first. Behind its end Envoy turns to its fall-back policy, which knows of no subset: for a request
// that has one the list is as long as the attempts that a route is to make.
func (x *stream) pick() string {
	list := strings.Join(x.picks, ",")
	if x.Picked.Only != nil {
		last := x.picks[len(x.picks)-1]
		for n := len(x.picks); n < 1+fallbacks; n++ {
			list += "," + last
		}
	}
	return list
}

// pickMetadata is the pick as the load balancer's metadata.
func (x *stream) pickMetadata(pick string) metadata {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		metaPick: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{headerDestination: structpb.NewStringValue(pick)}}),
	}}
}
