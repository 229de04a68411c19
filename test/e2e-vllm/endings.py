"""What becomes of streams and of new requests when a server dies, is told to end, and comes back."""
import contextlib
import os
import signal
import time

import httpx

from rig import Gateway, check, complete, error_of, finished, http, note, start, stream, tokens, until


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
                if http.get(v.url + "/health", timeout=2).status_code == 200:
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
    streams hung, and none more on a machine on which one takes minutes."""
    began = time.time()
    for n in range(1, 4):
        threads, (others, hit) = open_streams(gw, a, b, 700 + 200 * n)
        b.proc.send_signal(signal.SIGTERM)
        at = time.time()
        after(at, threads, hit, others, gw, f"SIGTERM {n}", seconds=10)
        silent = max(s["ended"] for s in hit) - at > 1
        note(f"the server {'let its streams hang' if silent else 'aborted its streams'}")
        recovers(gw, b, f"SIGTERM {n}")
        b.warm()
        if silent or time.time() - began > 120:
            break


def endings(a, b):
    with Gateway([a, b]) as gw:
        kill_engine(gw, a, b)
        recovers(gw, a, "engine killed")
        a.warm()
        sigterm(gw, a, b)
        left = until(lambda: gw.metric("pointsman_in_flight_requests") == 0, 2)
        check("nothing is in flight at the end", left, f"{gw.metric('pointsman_in_flight_requests'):.0f}")
