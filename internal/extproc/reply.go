package extproc

import (
	"io"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

type sender = extprocv3.ExternalProcessor_ProcessServer

// reply makes the answers to Envoy. What there is one of per event lives here and is sent again and again: gRPC has encoded a message
// when Send returns.
type reply struct {
	request, response     extprocv3.ProcessingResponse // with a piece of a body
	chunk                 extprocv3.StreamedBodyResponse
	requestAs, responseAs extprocv3.ProcessingResponse // with nothing but the go-ahead
}

// init links the parts.
func (r *reply) init() {
	piece := &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
		Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &r.chunk}}}}
	r.request.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: piece}
	r.response.Response = &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: piece}
	r.requestAs.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{}}
	r.responseAs.Response = &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{}}
}

// requestHeaders lets the request's headers go on with m's changes.
func (r *reply) requestHeaders(out sender, m *extprocv3.HeaderMutation) error {
	return r.picked(out, m, nil)
}

// picked lets them go on, with the pick.
func (r *reply) picked(out sender, m *extprocv3.HeaderMutation, pick metadata) error {
	return out.Send(&extprocv3.ProcessingResponse{DynamicMetadata: pick, Response: &extprocv3.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{HeaderMutation: m, ClearRouteCache: len(m.GetRemoveHeaders()) > 0}}}})
}

// pickedInstead lets the headers go on with the pick, and body in place of what Envoy has shown of the request; its trailers follow by
// themselves. A body that trailers end must not go back in pieces: on a route with a retry policy Envoy, seen with 1.40, then sends
// it to the endpoint twice, one behind the other.
func (r *reply) pickedInstead(out sender, m *extprocv3.HeaderMutation, pick metadata, body []byte) error {
	return out.Send(&extprocv3.ProcessingResponse{DynamicMetadata: pick, Response: &extprocv3.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{Status: extprocv3.CommonResponse_CONTINUE_AND_REPLACE,
			HeaderMutation: m, ClearRouteCache: len(m.GetRemoveHeaders()) > 0,
			BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: body}}}}}})
}

// pickedWithBody lets the headers and the body that Envoy keeps go on; changed takes the place of the body if it is not nil.
func (r *reply) pickedWithBody(out sender, m *extprocv3.HeaderMutation, pick metadata, changed []byte) error {
	common := &extprocv3.CommonResponse{HeaderMutation: m, ClearRouteCache: len(m.GetRemoveHeaders()) > 0}
	if changed != nil {
		common.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: changed}}
	}
	return out.Send(&extprocv3.ProcessingResponse{DynamicMetadata: pick, Response: &extprocv3.ProcessingResponse_RequestBody{
		RequestBody: &extprocv3.BodyResponse{Response: common}}})
}

// requestChunk gives a piece of the request's body back.
func (r *reply) requestChunk(out sender, b []byte, end bool) error {
	r.chunk.Body, r.chunk.EndOfStream = b, end
	err := out.Send(&r.request)
	r.chunk.Body = nil
	return err
}

// responseChunk is requestChunk for the answer.
func (r *reply) responseChunk(out sender, b []byte, end bool) error {
	r.chunk.Body, r.chunk.EndOfStream = b, end
	err := out.Send(&r.response)
	r.chunk.Body = nil
	return err
}

// requestBody lets the piece that Envoy has go on.
func (r *reply) requestBody(out sender) error { return out.Send(&r.requestAs) }

// responseBody is requestBody for the answer.
func (r *reply) responseBody(out sender) error { return out.Send(&r.responseAs) }

// responseInstead lets b go on in place of the piece of the answer that Envoy has.
func (r *reply) responseInstead(out sender, b []byte) error {
	mutation := &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: b}}
	if len(b) == 0 {
		mutation.Mutation = &extprocv3.BodyMutation_ClearBody{ClearBody: true}
	}
	return out.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{
		ResponseBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: mutation}}}})
}

func (r *reply) responseHeaders(out sender, m *extprocv3.HeaderMutation) error {
	return out.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{
		ResponseHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{HeaderMutation: m}}}})
}

func (r *reply) requestTrailers(out sender) error {
	return out.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}})
}

func (r *reply) responseTrailers(out sender, m *extprocv3.HeaderMutation) error {
	return out.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{
		ResponseTrailers: &extprocv3.TrailersResponse{HeaderMutation: m}}})
}

// set makes m set a header, whatever there was.
func set(m *extprocv3.HeaderMutation, name, value string) {
	m.SetHeaders = append(m.SetHeaders, &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: name, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	})
}

func setLength(m *extprocv3.HeaderMutation, n int) { set(m, "content-length", strconv.Itoa(n)) }

func readFull(r io.Reader, p []byte) error {
	_, err := io.ReadFull(r, p)
	return err
}
