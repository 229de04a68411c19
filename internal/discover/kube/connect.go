package kube

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"time"
)

// connectLimit is how long a request waits for a connection. One to an API server that was lost without a word, whose
// handshake nobody answers, would otherwise hold up the next try for ten seconds after the server is back. A connection
// that takes longer is still made, and serves a later request.
const connectLimit = 3 * time.Second

var errNoConnection = errors.New("no connection to the API server within " + connectLimit.String())

// impatient gives up requests that get no connection.
type impatient struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (i impatient) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	wait := time.AfterFunc(connectLimit, func() { cancel(errNoConnection) })
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { wait.Stop() }})
	resp, err := i.RoundTripper.RoundTrip(req.WithContext(ctx))
	if err != nil {
		wait.Stop()
		if errors.Is(context.Cause(ctx), errNoConnection) {
			err = errNoConnection
		}
		cancel(nil)
		return nil, err
	}
	resp.Body = &released{resp.Body, func() { cancel(nil) }}
	return resp, nil
}

// released is a body whose end frees what its request held.
type released struct {
	io.ReadCloser
	free func()
}

// Close implements io.Closer.
func (r *released) Close() error {
	defer r.free()
	return r.ReadCloser.Close()
}
