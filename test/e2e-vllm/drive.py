"""Drives the gateway in front of two real vLLM servers and says, line by line, what it saw.

    drive.py HOME POINTSMAN [CHECK...]

Every check prints PASS or FAIL with the numbers; the exit code is the number of failures. Where a check shows what the gateway
prevents, the same load is run with `policy: least_request, gates: off` first, so that the danger is seen to be real.
Only processes started here are ended.
"""
import json
import signal
import socket
import statistics
import sys
import time

import anthropic
import openai

import endings
import memory
from rig import BLOCK, CHECKS, LEAST, LOGS, Gateway, Vllm, body, check, complete, failed, http, note, text, tokens, until


def clients(gw, a, b):
    """The official clients, unmodified."""
    ok_before, all_before = gw.metric("pointsman_requests_total", outcome="ok"), gw.metric("pointsman_requests_total")
    oai = openai.OpenAI(base_url=gw.url + "/v1", api_key="unused", max_retries=0)
    names = [m.id for m in oai.models.list()]
    check("OpenAI client, models", sorted(names) == ["alias", "tiny"], names)
    hello = [{"role": "user", "content": "Say hello."}]
    chat = oai.chat.completions.create(model="tiny", messages=hello, max_tokens=8)
    check("OpenAI client, chat", chat.usage.completion_tokens <= 8 and chat.model == "tiny", f"{chat.usage.completion_tokens} tokens")
    parts = list(oai.chat.completions.create(model="alias", messages=hello, max_tokens=8, stream=True, stream_options={"include_usage": True}))
    check("OpenAI client, chat stream", parts[-1].usage.completion_tokens <= 8 and parts[-2].choices[0].finish_reason in ("length", "stop"),
          f"{len(parts)} chunks, {parts[-1].usage.completion_tokens} tokens")
    answer = oai.responses.create(model="tiny", input="Say hello.", max_output_tokens=8)
    check("OpenAI client, responses", answer.status in ("completed", "incomplete"), f"{answer.status}, {answer.usage.output_tokens} tokens")
    kinds = [e.type for e in oai.responses.create(model="tiny", input="Say hello.", max_output_tokens=8, stream=True)]
    check("OpenAI client, responses stream", kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"),
          f"{len(kinds)} events, the last {kinds[-1]}")
    ant = anthropic.Anthropic(base_url=gw.url, api_key="unused", max_retries=0)
    message = ant.messages.create(model="tiny", max_tokens=8, messages=hello)
    check("Anthropic client, messages", message.usage.output_tokens <= 8, f"{message.usage.output_tokens} tokens, {message.stop_reason}")
    with ant.messages.stream(model="tiny", max_tokens=8, messages=hello) as s:
        last = s.get_final_message()
    check("Anthropic client, messages stream", last.stop_reason in ("max_tokens", "end_turn"), f"{last.usage.output_tokens} tokens, {last.stop_reason}")
    counted = ant.messages.count_tokens(model="tiny", messages=hello)
    check("Anthropic client, count_tokens", counted.input_tokens > 0, f"{counted.input_tokens} tokens")
    for name, call, kind in (("OpenAI", lambda: oai.chat.completions.create(model="nope", messages=hello), openai.NotFoundError),
                             ("Anthropic", lambda: ant.messages.create(model="nope", max_tokens=8, messages=hello), anthropic.NotFoundError)):
        try:
            call()
            check(f"{name} client, unknown model", False, "no error")
        except kind as e:
            check(f"{name} client, unknown model", "tiny" in str(e), e)
    try:
        oai.chat.completions.create(model="tiny", messages=hello, max_tokens=8, temperature=-1)
        check("OpenAI client, the engine's own refusal", False, "no error")
    except openai.BadRequestError as e:
        check("OpenAI client, the engine's own refusal", "temperature" in str(e), str(e)[:90])
    # A client that closes at [DONE], before the end of the response, has had all of it.
    ok, all_of = gw.metric("pointsman_requests_total", outcome="ok") - ok_before, gw.metric("pointsman_requests_total") - all_before
    check("every answer of these counts as ok, and nothing else does", ok == 8 and all_of == 11, f"{ok:.0f} of {all_of:.0f}")


def chats(gw, seed, users, turns):
    """Conversations of several turns, their turns interleaved. Returns of the later turns: how many there are, how many went to the
    conversation's first server, and how many found in its cache every block of what had been said."""
    state = [{"messages": [{"role": "user", "content": text(seed + c, 30)}], "home": None, "said": 0} for c in range(users)]
    later = returned = held = 0
    shares = []
    for turn in range(turns):
        for c, s in enumerate(state):
            r = http.post(gw.url + "/v1/chat/completions", timeout=60, json={
                "model": "tiny", "messages": s["messages"], "max_tokens": 16, "temperature": 0, "ignore_eos": True})
            answer, endpoint = r.raise_for_status().json(), r.headers["x-pointsman-endpoint"]
            prompt, cached = answer["usage"]["prompt_tokens"], (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0)
            if turn:
                later += 1
                returned += endpoint == s["home"]
                held += cached >= (s["said"] - 8) // BLOCK * BLOCK  # the last tokens may be others when more text follows them
                shares.append(cached / prompt)
            s["home"], s["said"] = s["home"] or endpoint, prompt
            s["messages"] += [{"role": "assistant", "content": answer["choices"][0]["message"]["content"] or ""},
                              {"role": "user", "content": text(seed + 1000 + c * 10 + turn, 8)}]
    return later, returned, held, statistics.mean(shares), len({s["home"] for s in state})


def affinity(a, b):
    """Later turns must return to the server that holds them; the engine's own cached_tokens is the witness."""
    for s in (a, b):
        s.empty_cache()
    with Gateway([a, b], **LEAST) as gw:
        later, returned, held, share, _ = chats(gw, 3000, 6, 4)
        note(f"least request: {returned} of {later} later turns return, {held} find all they said, {share:.0%} of prompts cached")
    for s in (a, b):
        s.empty_cache()
    with Gateway([a, b]) as gw:
        later, returned, held, share, homes = chats(gw, 1000, 6, 4)
        check("affinity: later turns return", returned >= 0.95 * later and homes == 2, f"{returned} of {later}, conversations on {homes} servers")
        check("affinity: cached_tokens covers what was said", held >= 0.95 * later, f"{held} of {later}, {share:.0%} of their prompts cached")
        predicted, actual = (gw.metric(f"pointsman_prefix_{k}_hit_tokens_total") for k in ("predicted", "actual"))
        check("affinity: the prediction agrees with the engine", actual > 0 and abs(predicted - actual) <= 0.25 * actual,
              f"predicted {predicted:.0f} tokens, actual {actual:.0f}")


def overflow(gw, a, b):
    """What is too long is refused once, in the shape and words by which clients know it, with the engine's own words in them."""
    for prompt, out in ((tokens(7, 2049), 4), (tokens(7, 2048), 4), (tokens(7, 20), 5000)):
        before = gw.metric("pointsman_requests_total", outcome="too_long")
        r, own = complete(gw, prompt, out), complete(a, prompt, out).json()["error"]["message"]
        counted = gw.metric("pointsman_requests_total", outcome="too_long") - before
        error = r.json()["error"]
        check(f"context overflow ({len(prompt)} tokens, max_tokens {out})",
              r.status_code == 400 and error["code"] == "context_length_exceeded" and error["type"] == "invalid_request_error" and counted == 1 and
              error["message"].startswith("This model's maximum context length is") and own in error["message"],
              f"{r.status_code}, too_long +{counted:.0f}, {error['message'][:110]}...")
    long = [{"role": "user", "content": text(5, 3000)}]
    try:
        openai.OpenAI(base_url=gw.url + "/v1", api_key="unused", max_retries=0).chat.completions.create(model="tiny", messages=long, max_tokens=8)
        check("context overflow, OpenAI client", False, "no error")
    except openai.BadRequestError as e:
        check("context overflow, OpenAI client", e.code == "context_length_exceeded", f"{e.code}: {str(e)[:90]}")
    try:
        anthropic.Anthropic(base_url=gw.url, api_key="unused", max_retries=0).messages.create(model="tiny", messages=long, max_tokens=8)
        check("context overflow, Anthropic client", False, "no error")
    except anthropic.BadRequestError as e:
        check("context overflow, Anthropic client", "prompt is too long" in str(e), str(e)[:150])
    r = complete(gw, tokens(9, 2000), 100)
    check("max_tokens beyond the window is clamped by the engine", r.status_code == 200 and r.json()["usage"]["completion_tokens"] == 48,
          f"{r.status_code}, {r.json()['usage']['completion_tokens']} tokens")
    ejected = sum(gw.metric("pointsman_endpoint_state", endpoint=s.host, state="ready") for s in (a, b))
    check("a client's mistakes eject nobody", ejected == 2, f"{ejected:.0f} of 2 ready")


def abort(gw, a, b):
    """A client that goes away frees the engine. A busy server answers for its state late, perhaps after the whole answer: then the try says nothing."""
    def leave(streamed, seed):
        before = gw.metric("pointsman_requests_total", outcome="client_cancelled")
        sock = socket.create_connection(("127.0.0.1", gw.api))
        data = json.dumps(body(tokens(seed, 50), 1900, stream=streamed)).encode()
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data))
        if streamed:
            while b'"text"' not in sock.recv(1 << 16):
                pass
        worked = until(lambda: gw.metric("pointsman_in_flight_requests") == 1 and a.running() + b.running() == 1, 3)
        sock.close()
        at = time.time()
        free = until(lambda: a.running() + b.running() == 0, 5)
        took = time.time() - at
        gone = until(lambda: gw.metric("pointsman_in_flight_requests") == 0, 1)
        cancelled = gw.metric("pointsman_requests_total", outcome="client_cancelled") - before
        if not worked or not cancelled:  # the answer was over before it could be given up
            return []
        return [took if free and gone else 99]

    for streamed, name in ((True, "in mid-stream"), (False, "without a stream")):
        took, tries = [], 0
        while len(took) < 3 and tries < 10:
            took += leave(streamed, 10 * tries + streamed)
            tries += 1
        check(f"abort {name}: the engine is free within 1 s, nothing in flight", len(took) == 3 and statistics.median(took) < 1,
              ", ".join(f"{t:.2f} s" for t in took) + f"; {len(took)} of {tries} given up before their end, counted as client_cancelled")

def with_gateway(f):
    def run(a, b):
        with Gateway([a, b]) as gw:
            f(gw, a, b)
    return run


ALL = {"clients": with_gateway(clients), "affinity": affinity, "overflow": with_gateway(overflow), "abort": with_gateway(abort),
       "head-of-line": memory.head_of_line_gate, "kv": memory.kv_gate, "endings": endings.endings}


def main():
    began = time.time()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the servers are ended then too
    LOGS.mkdir(exist_ok=True)
    unknown = set(CHECKS) - set(ALL)
    if unknown:
        sys.exit(f"no such check: {', '.join(unknown)}; there are {', '.join(ALL)}")
    servers = []
    try:
        servers = [Vllm("a"), Vllm("b")]
        for s in servers:
            s.wait()
        print(f"two vLLM {http.get(servers[0].url + '/version').json()['version']} servers after {time.time() - began:.0f} s", flush=True)
        for name, run in ALL.items():
            if CHECKS and name not in CHECKS:
                continue
            at = time.time()
            try:
                run(*servers)
            except Exception as e:  # the others are still worth running
                check(name, False, f"{type(e).__name__}: {e}")
            note(f"{name}: {time.time() - at:.0f} s")
    finally:
        for s in servers:
            s.stop()
    print(f"{len(failed)} failures, {time.time() - began:.0f} s")
    sys.exit(min(len(failed), 100))


if __name__ == "__main__":
    main()
