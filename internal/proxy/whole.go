package proxy

import "io"

// An engine sends an answer in one piece when it has all of it. So its head can wait for its body, which costs no time, and a
// body that breaks off becomes an error with a status and x-should-retry: false. Behind a 200 it could only be a broken
// connection, after which the official clients send the request again: the generation would run up to three times.

// gather reads the body of such an answer before its head goes out. The error says what the client is told instead. Bodies of
// unknown length and long ones pass as they come.
func (a *answer) gather() error {
	if !a.JSON || a.Tap == nil || a.length <= 0 || a.length > copyBufferSize {
		return nil
	}
	x := a.x
	a.buffer = x.p.buffers.Get()
	n, err := io.ReadFull(a.src, a.buffer[:a.length])
	body := a.buffer[:n]
	if n > 0 {
		a.Empty = false
		x.watch.last.set(max(1, x.Now()))
		a.Answer.Read(body)
	}
	switch {
	case err != nil:
		x.Rec.Cause = x.private(err)
		err = a.failed(err)
	case a.Tap.Aborted():
		x.Rec.Cause = "the model server aborted its answer"
		err = a.brokeOff(errEngineCut)
	case !a.Complete():
		x.Rec.Cause = "the answer is no whole JSON value"
		err = a.brokeOff(io.EOF)
	default:
		a.pending = body
		return nil
	}
	a.Count()
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

// release gives back what gather took.
func (a *answer) release() {
	if a.buffer != nil {
		a.x.p.buffers.Put(a.buffer)
		a.buffer, a.pending = nil, nil
	}
}
