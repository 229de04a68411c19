"""What the checks stand on: two real vLLM servers, the gateway, requests to them, and the lines that are printed."""
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

import httpx

HOME, GATEWAY, CHECKS = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
LOGS = HOME / "logs"
# 72 KV blocks of 32 tokens, of which vLLM keeps one for itself: 2272 tokens of KV memory for 8 sequences.
SERVER = """--served-model-name tiny alias --load-format dummy --dtype bfloat16 --enforce-eager --max-model-len 2048 --block-size 32
 --num-gpu-blocks-override 72 --kv-cache-memory-bytes 67108864 --max-num-seqs 8 --max-num-batched-tokens 256
 --enable-prompt-tokens-details --enable-request-id-headers --prefix-caching-hash-algo sha256_cbor --host 127.0.0.1""".split()
BLOCK = 32
LEAST = {"policy": "least_request", "gates": '"off"'}
WORDS = pathlib.Path(re.__file__).read_text().split() + pathlib.Path(subprocess.__file__).read_text().split()
# A connection of its own for every request, as from clients that know nothing of each other; one for all would also hide what a
# restart does. The client itself is shared: to make one costs as much as some dozens of tokens.
http = httpx.Client(verify=False, timeout=20, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0))
failed = []  # the names of the checks that failed


def check(name, ok, seen):
    if not ok:
        failed.append(name)
    print(f"{'PASS' if ok else 'FAIL'}  {name}: {seen}", flush=True)


def note(seen):
    print(f"      {seen}", flush=True)


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
            self.proc = subprocess.Popen(["nice", "-n", "3", "vllm", "serve", str(HOME / "tiny"), *SERVER, *more, "--port", str(self.port)],
                                         env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def wait(self, seconds=300):
        end = time.time() + seconds
        while time.time() < end:
            with contextlib.suppress(httpx.HTTPError):
                if http.get(self.url + "/health", timeout=2).status_code == 200:
                    return self.warm()
            if self.proc.poll() is not None:
                raise RuntimeError(f"vLLM {self.name} ended with {self.proc.returncode}: see {LOGS}/{self.name}.log")
            time.sleep(0.2)
        raise RuntimeError(f"vLLM {self.name} was not ready after {seconds} s: see {LOGS}/{self.name}.log")

    def warm(self):
        """What an engine does for the first time takes seconds; the checks are not about that."""
        for n in (20, 700):
            http.post(self.url + "/v1/completions", json=body(tokens(n, n), 8), timeout=120).raise_for_status()

    def metric(self, name, **labels):
        return parse(http.get(self.url + "/metrics", timeout=20).text, name, labels)

    def running(self):
        return self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting")

    def empty_cache(self):
        http.post(self.url + "/reset_prefix_cache", timeout=20)

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
        ready = until(lambda: self.get("/readyz") == 200 and http.get(self.url + "/v1/models").status_code == 200 and
                      all(self.metric("pointsman_endpoint_state", endpoint=s.host, state="ready") == 1 for s in servers), 15)
        if not ready:
            self.proc.kill()
            raise RuntimeError(f"the gateway was not ready: see {LOGS}/gateway.log")

    def get(self, path):
        with contextlib.suppress(httpx.HTTPError):
            return http.get(self.admin_url + path).status_code

    def metric(self, name, **labels):
        return parse(http.get(self.admin_url + "/metrics").text, name, labels)

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
    return http.post(at.url + "/v1/completions", json=body(prompt, out), timeout=timeout)


def stream(gw, prompt, out, seen, timeout=300):
    """Reads a stream into seen: endpoint, text, when its last bytes came, and how it ended."""
    try:
        with http.stream("POST", gw.url + "/v1/completions", json=body(prompt, out, stream=True), timeout=timeout) as r:
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


def speed(server):
    """How many tokens a second an idle server writes, and how many it reads: loads are sized by them."""
    idle(server)

    def seconds(n, out):
        at = time.time()
        complete(server, tokens(int(at * 1000), n), out).raise_for_status()
        return time.time() - at

    one, short, long = (statistics.median(seconds(n, out) for _ in range(3)) for n, out in ((20, 1), (20, 129), (1800, 1)))
    return 128 / max(0.001, short - one), 1780 / max(0.001, long - one)
