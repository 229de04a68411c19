package kube

import "iter"

// Source is where the endpoints of one pool are in a cluster. Exactly one of InferencePool, Service, Selector and AIBrix
// is set.
type Source struct {
	// InferencePool is the name of an InferencePool of inference.networking.k8s.io/v1, or, where there is none, of
	// inference.networking.x-k8s.io/v1alpha2. Its selector and its ports say the rest.
	InferencePool string
	// Service is the name of a Service whose EndpointSlices hold the endpoints.
	Service string
	// Selector is a label selector for pods, as kubectl takes it.
	Selector string
	// AIBrix is the model whose pods carry it as the label model.aibrix.ai/name.
	AIBrix string
	// Namespace is where to look; "" is the one that this program runs in.
	Namespace string
	// Port is the name or the number of the port in a Service's slices; "" takes the only one there is.
	Port string
	// Ports are the ports of each pod that Selector finds, one endpoint each, and of the pods of an AIBrix model without a
	// port label. Empty is 8000.
	Ports []int
	// ReadArgs takes settings of the model server from its pod's arguments and environment.
	ReadArgs bool
}

// kinds are the kinds of objects that a source is read from, and whether nothing can be said without them.
func (s Source) kinds() iter.Seq2[kind, bool] {
	return func(yield func(kind, bool) bool) {
		switch {
		case s.Service != "":
			_ = yield(endpointSlices, true) && (!s.ReadArgs || yield(pods, false))
		case s.InferencePool != "":
			_ = yield(pods, true) && yield(poolsV1, false) && yield(poolsV1Alpha2, false)
		default:
			yield(pods, true)
		}
	}
}

// attributes name the source in the log.
func (s Source) attributes() []any {
	var name string
	switch {
	case s.InferencePool != "":
		name = "inference_pool " + s.InferencePool
	case s.Service != "":
		name = "service " + s.Service
	case s.AIBrix != "":
		name = "aibrix " + s.AIBrix
	default:
		name = "selector " + s.Selector
	}
	if s.Namespace == "" {
		return []any{"kubernetes", name}
	}
	return []any{"kubernetes", name, "namespace", s.Namespace}
}
