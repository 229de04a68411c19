"""Drives the gateway in front of two real vLLM servers and says, line by line, what it saw.

Every check prints PASS or FAIL with the numbers; the exit code is the number of failures. Only processes started here are ended.
"""
import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import anthropic
import httpx
import openai

HOME, GATEWAY = pathlib.Path(sys.argv[1]), sys.argv[2]
LOGS = HOME / "logs"
LOGS.mkdir(exist_ok=True)
SERVER = """--served-model-name tiny alias --load-format dummy --dtype bfloat16 --enforce-eager --max-model-len 2048 --block-size 32
 --num-gpu-blocks-override 72 --kv-cache-memory-bytes 67108864 --max-num-seqs 8 --max-num-batched-tokens 256
 --enable-prompt-tokens-details --enable-request-id-headers --prefix-caching-hash-algo sha256_cbor --host 127.0.0.1""".split()
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


class Vllm:
    """One vLLM server in a process group of its own."""

    def __init__(self, name):
        self.name, self.port = name, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        env = dict(os.environ, VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1",
                   VLLM_NO_USAGE_STATS="1", VLLM_SERVER_DEV_MODE="1", PYTHONHASHSEED="0")
        self.log = open(LOGS / f"{self.name}.log", "ab")
        self.proc = subprocess.Popen(["vllm", "serve", str(HOME / "tiny"), *SERVER, "--port", str(self.port)], env=env,
                                     stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)

    def wait(self, seconds=240):
        end = time.time() + seconds
        while time.time() < end:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(self.url + "/health", timeout=2).status_code == 200:
                    return
            if self.proc.poll() is not None:
                sys.exit(f"vLLM {self.name} ended with {self.proc.returncode}: see {LOGS}/{self.name}.log")
            time.sleep(0.5)
        sys.exit(f"vLLM {self.name} was not ready after {seconds} s: see {LOGS}/{self.name}.log")

    def metric(self, name):
        text = httpx.get(self.url + "/metrics", timeout=10).text
        found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.M)
        return sum(map(float, found))

    def engine_pid(self):
        """The engine core is the child that is named so; killing it leaves the API server to notice."""
        out = subprocess.run(["ps", "-eo", "pid,pgid,args"], capture_output=True, text=True).stdout
        for line in out.splitlines():
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
        self.log = open(LOGS / "gateway.log", "ab")
        self.proc = subprocess.Popen([GATEWAY, "serve", "--config", str(config)], stdout=self.log, stderr=subprocess.STDOUT)
        end = time.time() + 15
        while time.time() < end:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(self.admin_url + "/readyz").status_code == 200:
                    time.sleep(0.6)  # a few reports of every server
                    return
            time.sleep(0.05)
        sys.exit(f"the gateway was not ready: see {LOGS}/gateway.log")

    def metric(self, name, **labels):
        total = 0.0
        for line in httpx.get(self.admin_url + "/metrics").text.splitlines():
            if line.startswith(name + "{") or line.startswith(name + " "):
                if all(f'{k}="{v}"' in line for k, v in labels.items()):
                    total += float(line.rsplit(" ", 1)[1])
        return total

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proc.terminate()
        try:
            self.proc.wait(20)
        except subprocess.TimeoutExpired:
            self.proc.kill()


def text(seed, words):
    start = (seed * 7919) % (len(WORDS) - words)
    return f"{seed} " + " ".join(WORDS[start:start + words])


def body(prompt, out, **more):
    return {"model": "tiny", "prompt": prompt, "max_tokens": out, "ignore_eos": True, "temperature": 0, **more}


def tokens(seed, n):
    """A prompt of exactly n tokens that shares nothing with another seed's."""
    return [3 + (seed * 131 + i * 17 + seed * i) % 500 for i in range(n)]


def complete(gw, prompt, out, timeout=300, **more):
    r = httpx.post(gw.url + "/v1/completions", json=body(prompt, out, **more), timeout=timeout)
    return r


def stream(gw, prompt, out, seen, timeout=300):
    """Reads a stream into seen: endpoint, events, the last bytes, and how it ended."""
    try:
        with httpx.stream("POST", gw.url + "/v1/completions", json=body(prompt, out, stream=True), timeout=timeout) as r:
            seen.update(status=r.status_code, endpoint=r.headers.get("x-pointsman-endpoint", ""), text="")
            for piece in r.iter_text():
                seen["text"] += piece
                seen["last"] = time.time()
        seen["end"] = "clean"
    except httpx.HTTPError as e:
        seen["end"] = f"{type(e).__name__}: {e}"
    seen["ended"] = time.time()


def in_threads(jobs):
    threads = [threading.Thread(target=f, args=a, daemon=True) for f, *a in jobs]
    for t in threads:
        t.start()
    for t in threads:
        t.join(300)


def until(predicate, seconds):
    end = time.time() + seconds
    while time.time() < end:
        if predicate():
            return True
        time.sleep(0.02)
    return False


def clients(gw):
    oai = openai.OpenAI(base_url=gw.url + "/v1", api_key="unused", max_retries=0)
    print("      models:", [m.id for m in oai.models.list()])
    chat = oai.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Say hello."}], max_tokens=8)
    check("OpenAI client, chat", chat.usage.completion_tokens <= 8 and chat.model == "tiny", chat.usage.to_dict())
    parts = list(oai.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Say hello."}], max_tokens=8,
                                             stream=True, stream_options={"include_usage": True}))
    check("OpenAI client, stream", parts[-1].usage is not None and len(parts) >= 2, f"{len(parts)} chunks")
    answer = oai.responses.create(model="tiny", input="Say hello.", max_output_tokens=8)
    check("OpenAI client, responses", answer.status in ("completed", "incomplete"), answer.status)
    ant = anthropic.Anthropic(base_url=gw.url, api_key="unused", max_retries=0)
    message = ant.messages.create(model="tiny", max_tokens=8, messages=[{"role": "user", "content": "Say hello."}])
    check("Anthropic client, messages", message.usage.output_tokens <= 8, message.usage.to_dict())
    try:
        oai.chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}])
        check("OpenAI client, unknown model", False, "no error")
    except openai.NotFoundError as e:
        check("OpenAI client, unknown model", "tiny" in str(e), e)


def affinity(gw):
    """Six conversations of four turns: later turns must return to the server that holds them."""
    returned = later = cached = 0
    for c in range(6):
        messages, home = [{"role": "user", "content": text(1000 + c, 25)}], None
        for turn in range(4):
            r = httpx.post(gw.url + "/v1/chat/completions", timeout=60, json={
                "model": "tiny", "messages": messages, "max_tokens": 16, "temperature": 0, "ignore_eos": True})
            answer, endpoint = r.json(), r.headers["x-pointsman-endpoint"]
            if turn:
                later += 1
                returned += endpoint == home
                cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
            home = home or endpoint
            messages += [answer["choices"][0]["message"] | {}, {"role": "user", "content": text(2000 + c * 10 + turn, 8)}]
            messages[-2] = {"role": "assistant", "content": messages[-2]["content"] or ""}
    check("affinity: later turns return", returned >= 0.95 * later, f"{returned} of {later}")
    check("affinity: cached_tokens > 0 on the later turns", cached >= 0.95 * later, f"{cached} of {later}")


def head_of_line(gw, a, b):
    """Server a is filled past the gateway until requests wait there: everything new must go to b."""
    fill = [threading.Thread(target=httpx.post, args=(a.url + "/v1/completions",), daemon=True,
                             kwargs={"json": body(tokens(i, 600), 400), "timeout": 300}) for i in range(5)]
    for t in fill:
        t.start()
    shown = until(lambda: a.metric("vllm:num_requests_waiting") >= 1, 10)
    until(lambda: gw.metric("pointsman_endpoint_waiting", endpoint=a.url.removeprefix("http://")) >= 1, 2)
    foreign = gw.metric("pointsman_endpoint_foreign_requests", endpoint=a.url.removeprefix("http://"))
    went, slowest = [], 0.0
    for i in range(8):
        start = time.time()
        went.append(complete(gw, tokens(50 + i, 20), 4).headers.get("x-pointsman-endpoint", ""))
        slowest = max(slowest, time.time() - start)
    still = a.metric("vllm:num_requests_waiting")
    ok = shown and all(b.url.endswith(w) or w == b.url for w in went)
    check("head-of-line gate: new requests avoid the server with a queue", ok, f"{len(went)} requests, slowest {slowest:.2f} s, waiting there {still:.0f}")
    check("foreign load is seen", foreign >= 3, f"{foreign:.0f} requests that the gateway did not send")
    for t in fill:
        t.join(120)


def kv_rounds(gw, servers, seed, rounds):
    """Rounds of two long answers and four short ones: two long ones on one server do not fit its 71 blocks."""
    before = sum(s.metric("vllm:num_preemptions_total") for s in servers)
    for r in range(rounds):
        jobs = []
        for i in range(2):
            jobs.append((complete, gw, tokens(seed + r * 20 + i, 900), 500))
        threads = []
        for n, job in enumerate(jobs):
            t = threading.Thread(target=job[0], args=job[1:], daemon=True)
            t.start()
            threads.append(t)
            for k in range(n + 1):  # an odd number of short ones in between makes counts lie about memory
                s = threading.Thread(target=complete, args=(gw, tokens(seed + 5000 + r * 20 + n * 5 + k, 24), 120), daemon=True)
                s.start()
                threads.append(s)
                time.sleep(0.15)
        for t in threads:
            t.join(120)
    until(lambda: all(s.metric("vllm:num_requests_running") == 0 for s in servers), 30)
    return sum(s.metric("vllm:num_preemptions_total") for s in servers) - before


def overflow(gw):
    r = complete(gw, tokens(7, 2049), 4)
    check("context overflow passes through", r.status_code == 400 and "maximum context length" in r.text, f"{r.status_code} {r.text[:120]}")
    check("context overflow is counted as too_long", gw.metric("pointsman_requests_total", outcome="too_long") >= 1,
          gw.metric("pointsman_requests_total", outcome="too_long"))


def abort(gw, servers):
    with httpx.stream("POST", gw.url + "/v1/completions", json=body(tokens(8, 50), 1500, stream=True), timeout=60) as r:
        next(r.iter_raw())
    start = time.time()
    ok = until(lambda: all(s.metric("vllm:num_requests_running") == 0 for s in servers), 5)
    took = time.time() - start
    check("abort: the server stops within 1 s", ok and took < 1, f"{took:.2f} s")
    check("abort: nothing in flight", until(lambda: gw.metric("pointsman_in_flight_requests") == 0, 1), gw.metric("pointsman_in_flight_requests"))


def spread_streams(gw, n, seed, out):
    seen = [{} for _ in range(n)]
    threads = []
    for i in range(n):
        t = threading.Thread(target=stream, args=(gw, tokens(seed + i, 40), out, seen[i]), daemon=True)
        t.start()
        threads.append(t)
        until(lambda: "data:" in seen[i].get("text", ""), 20)
    return seen, threads


def kill_engine(gw, a, b):
    seen, threads = spread_streams(gw, 4, 300, 500)
    hit = [s for s in seen if a.url.endswith(s["endpoint"]) and s["endpoint"]]
    os.kill(a.engine_pid(), signal.SIGKILL)
    killed = time.time()
    for t in threads:
        t.join(120)
    cut = [s for s in hit if '"error"' in s["text"] and '"finish_reason":"length"' not in s["text"]]
    slowest = max((s["ended"] - killed for s in hit), default=0)
    check("engine killed: its streams end with an error event", hit and len(cut) == len(hit) and slowest < 10, f"{len(cut)} of {len(hit)}, after {slowest:.2f} s")
    others = [s for s in seen if s not in hit]
    check("engine killed: the other server's streams finish", all('"finish_reason":"length"' in s["text"] for s in others), len(others))
    codes = [complete(gw, tokens(400 + i, 20), 4).status_code for i in range(20)]
    check("engine killed: new requests succeed", codes.count(200) == 20, f"{codes.count(200)} of 20")


def recovers(gw, a):
    a.proc.wait(30)
    a.start()
    a.wait()
    start, back = time.time(), False
    while not back and time.time() - start < 10:
        back = a.url.endswith(complete(gw, tokens(600 + int(time.time() * 50) % 5000, 20), 4).headers.get("x-pointsman-endpoint") or "-")
    check("a restarted server serves again", back, f"{time.time() - start:.2f} s after /health 200")


def sigterm(gw, a, b):
    seen, threads = spread_streams(gw, 4, 700, 1200)
    hit = [s for s in seen if b.url.endswith(s["endpoint"]) and s["endpoint"]]
    b.proc.send_signal(signal.SIGTERM)
    at = time.time()
    for t in threads:
        t.join(120)
    took = max((s["ended"] - at for s in hit), default=0)
    cut = [s for s in hit if '"error"' in s["text"] or "finish_reason\":\"length" in s["text"]]
    check("SIGTERM: silent streams are cut with an error event", hit and len(cut) == len(hit) and took < 30, f"{len(cut)} of {len(hit)}, after {took:.1f} s")
    codes = [complete(gw, tokens(800 + i, 20), 4).status_code for i in range(20)]
    check("SIGTERM: new requests succeed", codes.count(200) == 20, f"{codes.count(200)} of 20")


def main():
    started = time.time()
    a, b = Vllm("a"), Vllm("b")
    try:
        a.wait()
        b.wait()
        print(f"two vLLM {httpx.get(a.url + '/version').json()['version']} servers after {time.time() - started:.0f} s", flush=True)
        with Gateway([a, b]) as gw:
            clients(gw)
            affinity(gw)
            overflow(gw)
            abort(gw, [a, b])
            head_of_line(gw, a, b)
            kv_rounds(gw, [a, b], 90000, 2)  # the gateway learns how long answers are
            ours = kv_rounds(gw, [a, b], 10000, 6)
        with Gateway([a, b], policy="least_request", gates='"off"') as gw:
            theirs = kv_rounds(gw, [a, b], 30000, 6)
        check("KV gate: no preemption where least request causes them", ours == 0 and theirs > 0, f"ours {ours:.0f}, least request {theirs:.0f}")
        with Gateway([a, b]) as gw:
            kill_engine(gw, a, b)
            recovers(gw, a)
            sigterm(gw, a, b)
            check("nothing is in flight at the end", until(lambda: gw.metric("pointsman_in_flight_requests") == 0, 2), gw.metric("pointsman_in_flight_requests"))
    finally:
        a.stop()
        b.stop()
    print(f"{failures} failures, {time.time() - started:.0f} s")
    sys.exit(min(failures, 100))


main()
