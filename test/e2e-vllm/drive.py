"""Drives the gateway in front of two real vLLM servers and says, line by line, what it saw.

    drive.py HOME POINTSMAN [CHECK...]

Every check prints PASS or FAIL with the numbers; the exit code is the number of failures. Where a check shows what the gateway
prevents, the same load is run with `policy: least_request, gates: off` first, so that the danger is seen to be real.
Only processes started here are ended.
"""
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

import anthropic
import httpx
import openai

HOME, GATEWAY, CHECKS = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
LOGS = HOME / "logs"
# 72 KV blocks of 32 tokens, of which vLLM keeps one for itself: 2272 tokens of KV memory for 8 sequences.
SERVER = """--served-model-name tiny alias --load-format dummy --dtype bfloat16 --enforce-eager --max-model-len 2048 --block-size 32
 --num-gpu-blocks-override 72 --kv-cache-memory-bytes 67108864 --max-num-seqs 8 --max-num-batched-tokens 256
 --enable-prompt-tokens-details --enable-request-id-headers --prefix-caching-hash-algo sha256_cbor --host 127.0.0.1""".split()
BLOCK = 32
LEAST = {"policy": "least_request", "gates": '"off"'}
WORDS = pathlib.Path(re.__file__).read_text().split() + pathlib.Path(subprocess.__file__).read_text().split()
failures = 0


def check(name, ok, seen):
    global failures
    failures += not ok
    print(f"{'PASS' if ok else 'FAIL'}  {name}: {seen}", flush=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def parse(page, name, labels):
    """The sum of a metric's samples that carry the labels."""
    total = 0.0
    for line in page.splitlines():
        if line.startswith((name + "{", name + " ")) and all(f'{k}="{v}"' in line for k, v in labels.items()):
            total += float(line.rsplit(" ", 1)[1])
    return total


class Vllm:
    """One vLLM server in a process group of its own."""

    def __init__(self, name):
        self.name, self.port = name, free_port()
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.host}"
        self.start()

    def start(self, *more):
        env = dict(os.environ, VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1",
                   VLLM_NO_USAGE_STATS="1", VLLM_SERVER_DEV_MODE="1", PYTHONHASHSEED="0")
        with open(LOGS / f"{self.name}.log", "ab") as log:
            self.proc = subprocess.Popen(["nice", "-n", "10", "vllm", "serve", str(HOME / "tiny"), *SERVER, *more, "--port", str(self.port)],
                                         env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def wait(self, seconds=300):
        end = time.time() + seconds
        while time.time() < end:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(self.url + "/health", timeout=2).status_code == 200:
                    return self.warm()
            if self.proc.poll() is not None:
                raise RuntimeError(f"vLLM {self.name} ended with {self.proc.returncode}: see {LOGS}/{self.name}.log")
            time.sleep(0.2)
        raise RuntimeError(f"vLLM {self.name} was not ready after {seconds} s: see {LOGS}/{self.name}.log")

    def warm(self):
        """What an engine does for the first time takes seconds; the checks are not about that."""
        for n in (20, 700):
            httpx.post(self.url + "/v1/completions", json=body(tokens(n, n), 8), timeout=120).raise_for_status()

    def metric(self, name, **labels):
        return parse(httpx.get(self.url + "/metrics", timeout=20).text, name, labels)

    def running(self):
        return self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting")

    def empty_cache(self):
        httpx.post(self.url + "/reset_prefix_cache", timeout=20)

    def engine_pid(self):
        """The engine core is the child that is named so; killing it leaves the API server to notice."""
        out = subprocess.run(["ps", "-eo", "pid,pgid,args"], capture_output=True, text=True, check=True).stdout
        for line in out.splitlines()[1:]:
            pid, pgid, args = line.split(None, 2)
            if pgid == str(self.proc.pid) and "EngineCore" in args:
                return int(pid)
        raise RuntimeError("no engine core process")

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.proc.pid, signal.SIGKILL)
        self.proc.wait()


class Gateway:
    def __init__(self, servers, **pool):
        self.api, self.admin = free_port(), free_port()
        self.url, self.admin_url = f"http://127.0.0.1:{self.api}", f"http://127.0.0.1:{self.admin}"
        keys = "".join(f"    {k}: {v}\n" for k, v in pool.items())
        config = LOGS / "gateway.yaml"
        config.write_text(f"listen: 127.0.0.1:{self.api}\nadmin: 127.0.0.1:{self.admin}\ndebug_headers: true\npools:\n"
                          f"  - name: tiny\n    endpoints: [{', '.join(s.url for s in servers)}]\n{keys}")
        with open(LOGS / "gateway.log", "ab") as log:
            self.proc = subprocess.Popen([GATEWAY, "serve", "--config", str(config)], stdout=log, stderr=subprocess.STDOUT)
        ready = until(lambda: self.get("/readyz") == 200 and httpx.get(self.url + "/v1/models").status_code == 200 and
                      all(self.metric("pointsman_endpoint_state", endpoint=s.host, state="ready") == 1 for s in servers), 15)
        if not ready:
            self.proc.kill()
            raise RuntimeError(f"the gateway was not ready: see {LOGS}/gateway.log")

    def get(self, path):
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(self.admin_url + path).status_code

    def metric(self, name, **labels):
        return parse(httpx.get(self.admin_url + "/metrics").text, name, labels)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proc.terminate()
        try:
            self.proc.wait(20)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()


def text(seed, words):
    start = (seed * 7919) % (len(WORDS) - words)
    return f"{seed} " + " ".join(WORDS[start:start + words])


def tokens(seed, n):
    """A prompt of exactly n tokens that shares nothing with another seed's."""
    return random.Random(seed).choices(range(3, 503), k=n)


def body(prompt, out, **more):
    return {"model": "tiny", "prompt": prompt, "max_tokens": out, "ignore_eos": True, **more}


def complete(at, prompt, out, timeout=300):
    return httpx.post(at.url + "/v1/completions", json=body(prompt, out), timeout=timeout)


def stream(gw, prompt, out, seen, timeout=300):
    """Reads a stream into seen: endpoint, text, when its last bytes came, and how it ended."""
    try:
        with httpx.stream("POST", gw.url + "/v1/completions", json=body(prompt, out, stream=True), timeout=timeout) as r:
            seen.update(status=r.status_code, endpoint=r.headers.get("x-pointsman-endpoint", ""))
            for piece in r.iter_text():
                seen["text"] = seen.get("text", "") + piece
                seen["last"] = time.time()
        seen["end"] = "clean"
    except httpx.HTTPError as e:
        seen["end"] = f"{type(e).__name__}: {e}"
    seen["ended"] = time.time()


def finished(seen):
    return '"finish_reason":"length"' in seen.get("text", "") and seen["text"].rstrip().endswith("[DONE]")


def error_of(seen):
    """The error event of a stream that has one and did not claim to be complete before it."""
    events = [line[5:] for line in seen.get("text", "").splitlines() if line.startswith("data:")]
    for i, event in enumerate(events):
        if re.match(r'\s*\{\s*"error"', event) and '"finish_reason":"length"' not in "".join(events[:i]):
            return json.loads(event)["error"]
    return None


def start(f, *args, **kwargs):
    t = threading.Thread(target=f, args=args, kwargs=kwargs, daemon=True)
    t.start()
    return t


def until(predicate, seconds):
    end = time.time() + seconds
    while time.time() < end:
        if predicate():
            return True
        time.sleep(0.02)
    return bool(predicate())


def idle(*servers):
    until(lambda: all(s.running() == 0 for s in servers), 60)


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
            r = httpx.post(gw.url + "/v1/chat/completions", timeout=60, json={
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
        print(f"      least request: {returned} of {later} later turns return, {held} find all they said, {share:.0%} of prompts cached", flush=True)
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
    for prompt, out in ((tokens(7, 2049), 4), (tokens(7, 2048), 4), (tokens(7, 20), 5000)):
        before = gw.metric("pointsman_requests_total", outcome="too_long")
        r = complete(gw, prompt, out)
        direct = complete(a, prompt, out)
        counted = gw.metric("pointsman_requests_total", outcome="too_long") - before
        error, words = r.json()["error"], direct.json()["error"]["message"]
        check(f"context overflow ({len(prompt)} tokens, max_tokens {out})",
              r.status_code == 400 and error["code"] == "context_length_exceeded" and words in error["message"] and counted == 1,
              f"{r.status_code}, too_long +{counted:.0f}, {error['message'][:70]}...")
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


def head_of_line(a, b, **pool):
    """Past the gateway, a gets one long answer and behind it a prompt that does not fit its memory: everything new waits there. It has
    two requests; b has four small ones, and room. Returns how many of four new requests went to a, how long they took, after how many
    seconds the gateway had seen all that, and whether the queue was there until the last of them was sent."""
    idle(a, b)
    done, ended = threading.Event(), {}

    def foreign(at, name, prompt, out):
        complete(at, prompt, out)
        ended[name] = time.time()

    def small(i):
        n = 0
        while not done.is_set():
            complete(b, tokens(7200 + 100 * i + n, 20), 200)
            n += 1

    def seen():
        page = httpx.get(gw.admin_url + "/metrics").text
        return (parse(page, "pointsman_endpoint_waiting", {"endpoint": a.host}) >= 1 and
                parse(page, "pointsman_endpoint_foreign_requests", {}) >= 5)  # b is between two now and then

    with Gateway([a, b], **pool) as gw:
        fill = [start(small, i) for i in range(4)] + [start(foreign, a, "long", tokens(70, 256), 1780)]
        until(lambda: a.metric("vllm:num_requests_running") >= 1, 10)
        fill.append(start(foreign, a, "behind", tokens(71, 2040), 4))
        at = time.time()
        noticed = time.time() - at if until(seen, 4) else None
        went, took = [], []

        def probe(i):
            at = time.time()
            went.append(complete(gw, tokens(50 + i, 20), 4).headers.get("x-pointsman-endpoint", ""))
            took.append(time.time() - at)

        probes = []
        for i in range(4):
            probes.append(start(probe, i))
            time.sleep(0.05)
        sent = time.time()
        for t in probes:
            t.join(60)
        done.set()
        for t in fill:
            t.join(60)
    return sum(w == a.host for w in went), sorted(took), noticed, ended.get("long", 0) > sent


def head_of_line_gate(a, b):
    def shown(least, **pool):
        """On a machine that is busy with other things the queue may be over before everybody has seen it: then once more."""
        for n in range(1, 6):
            there, took, noticed, lasted = head_of_line(a, b, **pool)
            if noticed is not None and lasted and there >= least:
                break
        return there, took[-1], noticed, lasted, f" (try {n})" if n > 1 else ""

    there, theirs, _, danger, tries = shown(1, **LEAST)
    print(f"      least request: {there} of 4 new requests wait behind the head of the queue, the slowest {theirs:.2f} s{tries}", flush=True)
    ours, slowest, noticed, lasted, tries = shown(0)
    check("head-of-line gate: new requests avoid the server with a queue", danger and there > 0 and lasted and ours == 0 and slowest < theirs,
          f"{ours} of 4 go there, the slowest {slowest:.2f} s{tries}")
    check("foreign load is seen", noticed is not None,
          "not seen" if noticed is None else f"what the gateway did not send, on both servers, after {noticed:.2f} s")


def kv_load(a, b, seconds, seed, streamed, **pool):
    """Two clients that ask for long answers (1000 tokens in, 400 out) and five that ask for short ones (24 in, 40 to 100 out), one after
    the other. Together they always fit the two servers: one long and all short ones need 64 of 71 blocks; two long ones never fit one
    server: 88 blocks. An odd number of short ones makes counts lie about memory.
    Returns preemptions, and what is to be said of the answers."""
    done = {}

    def client(k, end):
        n = 0
        while time.time() < end:
            s, at, long, seen = seed + k * 1000 + n, time.time(), k < 2, {}
            out = 400 if long else 40 + s * 37 % 60
            if streamed:
                stream(gw, tokens(s, 1000 if long else 24), out, seen)
                good = finished(seen)
            else:
                good = complete(gw, tokens(s, 1000 if long else 24), out).status_code == 200
            done.setdefault("long" if long else "short", []).append(time.time() - at)
            done["bad"] = done.get("bad", 0) + (not good)
            n += 1

    def clients_for(seconds):
        threads = [start(client, k, time.time() + seconds) for k in range(7)]
        for t in threads:
            t.join(120)
        idle(a, b)
        time.sleep(0.3)
        return a.metric("vllm:num_preemptions_total") + b.metric("vllm:num_preemptions_total")

    idle(a, b)
    with Gateway([a, b], **pool) as gw:
        before = clients_for(4)  # the gateway learns how long answers are
        done, seed = {}, seed + 10000
        preempted = clients_for(seconds) - before
    return preempted, (f"{preempted:.0f} preemptions; {len(done['long'])} long answers, median {statistics.median(done['long']):.1f} s; "
                       f"{len(done['short'])} short ones, {done['bad']} failed")


def kv_gate(a, b):
    theirs, said = kv_load(a, b, 18, 100000, True, **LEAST)
    print(f"      least request: {said}", flush=True)
    ours, said = kv_load(a, b, 18, 200000, True)
    check("KV gate, streams: no preemption where least request causes them", ours == 0 and theirs > 0 and said.endswith(" 0 failed"), said)
    ours, said = kv_load(a, b, 18, 300000, False)
    check("KV gate, answers in one piece: the same", ours == 0 and theirs > 0 and said.endswith(" 0 failed"), said)


def open_streams(gw, a, b, seed):
    """Four streams, two on each server, in the middle of their answers: all have begun and none has ended. On a machine that is busy with
    other things a server may send an answer in one go; then once more. Returns the threads, and what they see by server."""
    for n in range(8):
        seen = [{} for _ in range(4)]
        threads = []
        for i, s in enumerate(seen):
            threads.append(start(stream, gw, tokens(seed + 10 * n + i, 40), 1050, s))
            until(lambda: gw.metric("pointsman_in_flight_requests") > i, 1)
        if until(lambda: all(s.get("text") for s in seen), 2) and not any("end" in s for s in seen):
            by = [[s for s in seen if s["endpoint"] == v.host] for v in (a, b)]
            if all(by):
                return threads, by
        for t in threads:
            t.join(120)
    raise RuntimeError("no four streams were open at one time")


def after(moment, threads, hit, others, gw, name, seconds=5):
    """What became of the streams and of twenty new requests after the moment at which a server was hit."""
    codes = [complete(gw, tokens(400 + i, 20), 4).status_code for i in range(20)]
    for t in threads:
        t.join(120)
    cut = [error_of(s) for s in hit if error_of(s)]
    took = max(s["ended"] - moment for s in hit)
    check(f"{name}: its streams end with an error event within {seconds} s", len(cut) == len(hit) and took < seconds,
          f"{len(cut)} of {len(hit)}, after {took:.2f} s: {cut[0]['message'][:70] if cut else hit[0].get('text', '')[-200:]}")
    check(f"{name}: the other server's streams finish", all(map(finished, others)), f"{sum(map(finished, others))} of {len(others)}")
    check(f"{name}: new requests succeed, but for one that was under way", codes.count(200) >= 19, f"{codes.count(200)} of 20")


def kill_engine(gw, a, b):
    threads, (hit, others) = open_streams(gw, a, b, 300)
    os.kill(a.engine_pid(), signal.SIGKILL)
    after(time.time(), threads, hit, others, gw, "engine killed")


def recovers(gw, v, name):
    """The server comes back at its address, and gets requests without help."""
    until(lambda: v.proc.poll() is not None, 30)
    v.stop()
    v.start()
    at = time.time()
    back, failed = None, 0
    deadline = time.time() + 300
    healthy = None
    while back is None and time.time() < deadline:
        if healthy is None:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(v.url + "/health", timeout=2).status_code == 200:
                    healthy = time.time()
        r = complete(gw, tokens(int(time.time() * 100) % 100000, 20), 4)
        failed += r.status_code != 200
        if r.headers.get("x-pointsman-endpoint") == v.host:
            back = time.time()
        time.sleep(0.1)
    after = (back or 1e9) - (healthy or at)
    check(f"{name}: the restarted server serves again", healthy and back and after < 4 and failed == 0,
          f"{max(0, after):.2f} s after its /health says 200, {failed} failed meanwhile")


def sigterm(gw, a, b):
    """A server that gets SIGTERM aborts what it runs, or lets its open requests hang for ever: both happen. Three rounds at most, until
    streams hung."""
    for n in range(1, 4):
        threads, (others, hit) = open_streams(gw, a, b, 700 + 200 * n)
        b.proc.send_signal(signal.SIGTERM)
        at = time.time()
        after(at, threads, hit, others, gw, f"SIGTERM {n}", seconds=10)
        silent = max(s["ended"] for s in hit) - at > 1
        print(f"      the server {'let its streams hang' if silent else 'aborted its streams'}", flush=True)
        recovers(gw, b, f"SIGTERM {n}")
        b.warm()
        if silent:
            break


def endings(a, b):
    with Gateway([a, b]) as gw:
        kill_engine(gw, a, b)
        recovers(gw, a, "engine killed")
        a.warm()
        sigterm(gw, a, b)
        left = until(lambda: gw.metric("pointsman_in_flight_requests") == 0, 2)
        check("nothing is in flight at the end", left, f"{gw.metric('pointsman_in_flight_requests'):.0f}")


def with_gateway(f):
    def run(a, b):
        with Gateway([a, b]) as gw:
            f(gw, a, b)
    return run


ALL = {"clients": with_gateway(clients), "affinity": affinity, "overflow": with_gateway(overflow), "abort": with_gateway(abort),
       "head-of-line": head_of_line_gate, "kv": kv_gate, "endings": endings}


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
        print(f"two vLLM {httpx.get(servers[0].url + '/version').json()['version']} servers after {time.time() - began:.0f} s", flush=True)
        for name, run in ALL.items():
            if CHECKS and name not in CHECKS:
                continue
            try:
                run(*servers)
            except Exception as e:  # the others are still worth running
                check(name, False, f"{type(e).__name__}: {e}")
    finally:
        for s in servers:
            s.stop()
    print(f"{failures} failures, {time.time() - began:.0f} s")
    sys.exit(min(failures, 100))


if __name__ == "__main__":
    main()
