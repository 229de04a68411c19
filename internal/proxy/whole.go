package proxy

import "io"

// An engine sends an answer in one piece when it has all of it. So its head can wait for its body, which costs no time, and a
// body that breaks off becomes an error with a status and x-should-retry: false. Behind a 200 it could only be a broken
// connection, after which the official clients send the request again: the generation would run up to three times.

// gather reads the body of such an answer before its head goes out. The error says what the client is told instead. Bodies of
// unknown length and long ones pass as they come.
func (a *answer) gather() error {
	if !a.json || a.tap == nil || a.length <= 0 || a.length > copyBufferSize {
		return nil
	}
	x := a.x
	a.buffer = x.p.buffers.Get()
	n, err := io.ReadFull(a.src, a.buffer[:a.length])
	body := a.buffer[:n]
	if n > 0 {
		a.empty = false
		x.watch.last.set(max(1, x.now()))
		a.tap.Write(body)
		x.keepResponse()
	}
	switch {
	case err != nil:
		x.rec.Cause = x.private(err)
		err = a.failed(err)
	case a.tap.Aborted():
		x.rec.Cause = "the model server aborted its answer"
		err = a.brokeOff(errEngineCut)
	case !a.complete():
		x.rec.Cause = "the answer is no whole JSON value"
		err = a.brokeOff(io.EOF)
	default:
		a.pending = body
		return nil
	}
	a.count()
	a.src.Close()
	return err
}

// failed says why a body could not be read to its end.
func (a *answer) failed(err error) error {
	if a.x.ctx.Err() != nil {
		return a.x.cancelled()
	}
	return a.brokeOff(err)
}

// saysError takes an error that the engine put into a whole answer behind a 200, and reports whether there is one.
func (a *answer) saysError() bool {
	if a.stream || a.tap == nil {
		return false
	}
	message, code, bad := a.tap.ErrorEvent()
	if !bad {
		return false
	}
	x := a.x
	x.outcome, x.rec.Cause = a.engineError(message, code), "the model server sent an error with a status of success"
	if code >= 400 {
		x.result.Status = code
	}
	return true
}

// release gives back what gather took.
func (a *answer) release() {
	if a.buffer != nil {
		a.x.p.buffers.Put(a.buffer)
		a.buffer, a.pending = nil, nil
	}
}
