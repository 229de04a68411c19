"""The two gates that are about memory: a queue behind a prompt that does not fit, and answers that grow until they do not.

Neither load depends on how fast the machine is: what must be there at one time is held, or sent in an order, until it has been seen.
"""
import itertools
import statistics
import threading
import time

from rig import LEAST, Gateway, check, complete, finished, http, idle, note, parse, speed, start, stream, tokens, until


def head_of_line(a, b, out, **pool):
    """Past the gateway, a gets three clients whose prompts (1,500 tokens, out more to come: 63 of 71 blocks) fit its memory one at a time, so
    that two of them wait at every moment; b has four small ones, and room. Once the servers themselves show that, and the gateway too, four
    new requests come. Returns how many of them went to a and the slowest one's seconds; how many seconds the gateway took to show what
    the servers showed (None: it did not); and whether it showed the queue before and after each of the four."""
    idle(a, b)
    done = threading.Event()

    def foreign(at, seed, prompt, out):
        n = 0
        while not done.is_set():
            complete(at, tokens(seed + n, prompt), out)
            n += 1

    def queued(page):
        return parse(page, "pointsman_endpoint_waiting", {"endpoint": a.host}) >= 1

    def seen():
        page = http.get(gw.admin_url + "/metrics").text
        return queued(page) and parse(page, "pointsman_endpoint_foreign_requests", {}) >= 6  # b is between two now and then

    with Gateway([a, b], **pool) as gw:
        fill = [start(foreign, b, 7200 + 1000 * i, 20, 200) for i in range(4)] + [start(foreign, a, 17200 + 1000 * i, 1500, out) for i in range(3)]
        shown = until(lambda: a.metric("vllm:num_requests_waiting") >= 1 and a.running() + b.running() >= 6, 60)
        at = time.time()
        noticed = time.time() - at if until(seen, 30) else None
        went, took = [], []

        def probe(i):
            at = time.time()
            went.append(complete(gw, tokens(50 + i, 20), 4).headers.get("x-pointsman-endpoint", ""))
            took.append(time.time() - at)

        probes, lasted = [], shown and noticed is not None
        for i in range(4):
            lasted = lasted and queued(http.get(gw.admin_url + "/metrics").text)
            probes.append(start(probe, i))
            time.sleep(0.05)
        lasted = lasted and queued(http.get(gw.admin_url + "/metrics").text)
        for t in probes:
            t.join(120)
        done.set()
        for s in (a, b):
            http.post(s.url + "/abort_requests", json={}, timeout=20)
        for t in fill:
            t.join(120)
    return sum(w == a.host for w in went), max(took, default=0), noticed if shown else None, lasted


def head_of_line_gate(a, b):
    decode, prefill = speed(a)
    out = min(500, max(150, int(2 * decode)))
    note(f"a server writes {decode:.0f} tokens/s and reads {prefill:.0f}: {out} tokens behind each prompt that blocks the queue")

    def held(least, **pool):
        """Only a try whose queue was shown all the time says something."""
        for n in range(1, 6):
            there, slowest, noticed, lasted = head_of_line(a, b, out, **pool)
            if lasted and there >= least:
                break
        return there, slowest, noticed, lasted, f" (try {n})" if n > 1 else ""

    there, theirs, _, danger, tries = held(1, **LEAST)
    note(f"least request: {there} of 4 new requests wait behind the head of the queue, the slowest {theirs:.2f} s{tries}")
    check("head-of-line: the load shows the danger", danger and there > 0, f"{there} of 4 wait with least request, queue held: {danger}")
    ours, slowest, noticed, lasted, tries = held(0)
    check("head-of-line gate: new requests avoid the server with a queue", lasted and ours == 0 and slowest < theirs,
          f"{ours} of 4 go there, the slowest {slowest:.2f} s{tries}")
    check("foreign load is seen within 4 s", noticed is not None and noticed < 4,
          "not seen" if noticed is None else f"what the gateway did not send, on both servers, {noticed:.2f} s after the servers showed it")


class MemoryLoad:
    """Long answers (1,000 tokens in, 400 out) and short ones (24 in, 40 to 220 out) through a gateway. Together they always fit the two
    servers: a long one and all short ones of its load need at most 64 of 71 blocks; two long ones never fit one server: 88 blocks."""

    def __init__(self, gw, a, b, seed, streamed):
        self.gw, self.a, self.b, self.seeds, self.streamed = gw, a, b, itertools.count(seed), streamed
        self.long, self.short, self.bad = [], [], 0

    def ask(self, long, out):
        prompt, at, seen = tokens(next(self.seeds), 1000 if long else 24), time.time(), {}
        if self.streamed:
            stream(self.gw, prompt, out, seen)
            good = finished(seen)
        else:
            good = complete(self.gw, prompt, out).status_code == 200
        (self.long if long else self.short).append(time.time() - at)
        self.bad += not good

    def burst(self):
        """A long answer, two short ones, a long answer, each as soon as the gateway has the one before. Counts lie: whichever server
        the short ones leave emptier, half of the time it is the first long one's."""
        threads = []
        for i, (long, out) in enumerate(((True, 400), (False, 220), (False, 220), (True, 400))):
            threads.append(start(self.ask, long, out))
            until(lambda: self.gw.metric("pointsman_in_flight_requests") > i, 5)
        for t in threads:
            t.join(120)

    def mixed(self, answers):
        """Two clients that ask for long answers and five that ask for short ones, one after the other, until so many long ones are there."""
        goal, end = len(self.long) + answers, time.time() + 60

        def client(k):
            while len(self.long) < goal and time.time() < end:
                self.ask(k < 2, 400 if k < 2 else 40 + (len(self.short) + k) * 37 % 60)

        threads = [start(client, k) for k in range(7)]
        for t in threads:
            t.join(120)

    def preemptions(self):
        idle(self.a, self.b)
        time.sleep(0.3)
        return self.a.metric("vllm:num_preemptions_total") + self.b.metric("vllm:num_preemptions_total")


def kv_load(a, b, seed, streamed, enough, **pool):
    """Runs bursts until enough(how many there were, how many of them had a preemption), then a mix of clients. Returns the bursts, the
    preemptions in all, the failed answers, and what is to be said of them."""
    idle(a, b)
    with Gateway([a, b], **pool) as gw:
        load = MemoryLoad(gw, a, b, seed, streamed)
        load.mixed(4)  # the gateway learns how long answers are
        load.long, load.short = [], []
        began = at = load.preemptions()
        n = hit = 0
        while not enough(n, hit):
            load.burst()
            n += 1
            before, at = at, load.preemptions()
            hit += at > before
        load.mixed(8)
        end = load.preemptions()
    return n, end - began, load.bad, (f"{at - began:.0f} preemptions in {hit} of {n} bursts, {end - at:.0f} in the mix; {len(load.long)} long answers, "
                                      f"median {statistics.median(load.long):.1f} s; {len(load.short)} short ones, {load.bad} failed")


def kv_gate(a, b):
    end = time.time() + 120
    bursts, theirs, _, said = kv_load(a, b, 100000, True, lambda n, hit: n >= 6 and (hit >= 2 or n >= 20 or time.time() > end), **LEAST)
    note(f"least request: {said}")
    check("KV: the load shows the danger", theirs > 0, f"{theirs:.0f} preemptions with least request")
    for name, seed, streamed in (("streams", 200000, True), ("answers in one piece", 300000, False)):
        _, ours, bad, said = kv_load(a, b, seed, streamed, lambda n, _: n >= bursts)
        check(f"KV gate, {name}: no preemption where least request causes them", ours == 0 and theirs > 0 and bad == 0, said)
