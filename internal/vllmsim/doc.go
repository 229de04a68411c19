// Package vllmsim is a simulated vLLM server: real HTTP over the engine model of internal/engine.
//
// It exists so that a gateway, its tests, its demo and its benchmarks can meet a model server that behaves like the real
// one without a GPU: the same bytes on the wire, the same metrics pages, the same odd moments (a drain that still says
// healthy, a SIGTERM that leaves streams hanging, a keep-alive that ends after exactly five seconds). What it answers
// follows recordings of vLLM 0.32.0 and 0.10.0; where a behaviour is not recorded it is the plainest reading of vLLM's
// source.
//
// Recorded, and compared byte for byte in the tests: chat, completions, responses, messages, generate, render, tokenize,
// models, errors, limits, drain, and the metrics pages of the styles current and vllm-0.8. Written from vLLM's and SGLang's
// sources without a recording: the pages of vllm-0.12 and sglang (the HTTP side of the latter is vLLM's), pooling, audio,
// tool calls and structured output. net/http sets the limits of exactness: Content-Length, Connection and
// Transfer-Encoding keep their capitals, headers are sorted, and a malformed request line gets net/http's own 400.
//
// It does not run a model. Text is noise with exact token counts, a tokenizer cuts about four bytes per token, and a
// step takes the time that the chosen profile says, divided by Config.Speed.
//
// Ownership: one Server owns one engine. A single mutex guards the engine and everything that a metrics page shows; the
// engine is stepped by one goroutine that exists only while there is work, so an idle Server costs no goroutine and may
// be dropped without closing it. Handlers wait on channels and timers only: a Server works inside a testing/synctest
// bubble. Nothing is shared between Servers.
package vllmsim
