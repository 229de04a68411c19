"""What the official clients show when an answer breaks, for each cut_stream; the table of docs/cut-streams.md is what they showed.

UPDATE=1 writes the table anew."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from cut_engine import Engine

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = pathlib.Path(os.environ["OUT"])
PAGE = ROOT / "docs" / "cut-streams.md"
MODES = ("both", "error_event", "abort")
SHARED = ["reset", "reset-inside-an-event", "early-end", "idle-limit", "total-limit", "engine-error", "abort", "done-without-finish",
          "reset-before-head", "body-cut", "chunked-cut"]
OWN = ["endpoint-gone", "drain-end"]  # need a gateway of their own
STREAM_ONLY = {"reset", "reset-inside-an-event", "early-end", "idle-limit", "done-without-finish"}
PIECE_ONLY = {"body-cut", "chunked-cut"}


class Gateway:
    def __init__(self, engine, mode, name, limits):
        config = OUT / f"cut-{name}.yaml"
        config.write_text(f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\ncut_stream: {mode}\n{limits}drain: 300ms\ndrain_delay: 0s\n"
                          f"pools:\n  - {{name: a, endpoints: [{engine.url}]}}\n")
        self.log = open(OUT / f"cut-{name}.log", "w+")
        self.process = subprocess.Popen([ROOT / "bin/pointsman", "serve", "--config", config], stderr=self.log)
        for _ in range(1200):
            time.sleep(0.05)
            if found := re.search(r"msg=listening api=(\S+) admin=(\S+)", pathlib.Path(self.log.name).read_text()):
                break
        self.url, admin = "http://" + found[1], "http://" + found[2]
        for _ in range(1200):
            try:
                if urllib.request.urlopen(admin + "/readyz").status == 200:
                    return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"the gateway {name} is not ready")

    def stop(self):
        self.process.kill()
        self.process.wait()


def clients(url, run, cases, meanwhile=lambda: None):
    """Runs both programs and returns what they showed, by (client, api, how, case)."""
    commands = {"Python": [sys.executable, "-B", ROOT / "test/clients/cut_show.py"], "Node": ["node", OUT / "cut_show.mjs"]}
    running = {k: subprocess.Popen([*c, url, run, *cases], stdout=subprocess.PIPE, text=True) for k, c in commands.items()}
    meanwhile()
    return {(k, *name.split(".")): shown for k, p in running.items() for name, shown in json.loads(p.communicate(timeout=120)[0]).items()}


def applies(api, how, case):
    if case == "abort" and api in ("responses", "messages"):
        return False  # these have no such word
    return case not in (PIECE_ONLY if how == "stream" else STREAM_ONLY)


@pytest.fixture(scope="module")
def shown():
    """By mode and (client, api, how, case)."""
    with ThreadPoolExecutor(len(MODES)) as pool:
        return dict(zip(MODES, pool.map(shown_by, MODES)))


def shown_by(mode):
    got = {}
    engine = Engine()
    gateway = Gateway(engine, mode, mode, "limit: 3s\nidle: 1s\n")
    whole = clients(gateway.url, mode + "-whole", ["whole"])
    assert set(whole.values()) == {"looks complete"}, whole
    got |= clients(gateway.url, mode, SHARED)
    executed = dict(engine.executed)
    gateway.stop()

    def wait_for(e, n):
        deadline = time.time() + 90
        while len(e.executed) < n:
            assert time.time() < deadline, f"{len(e.executed)} of {n} requests came"
            time.sleep(0.05)
        time.sleep(2)  # the first events are out, 0.2 s after a request; on a busy machine later

    for case in OWN:
        engine = Engine()
        gateway = Gateway(engine, mode, f"{mode}-{case}", "limit: 120s\n")

        def meanwhile():
            wait_for(engine, 16)
            if case == "drain-end":
                gateway.process.send_signal(signal.SIGTERM)
            else:
                engine.sick = True

        got |= clients(gateway.url, mode, [case], meanwhile)
        executed |= engine.executed
        gateway.stop()
    got = {k: v for k, v in got.items() if applies(*k[1:])}
    got["executed"] = executed
    return got


CLIENTS = [("Python", "chat"), ("Python", "completions"), ("Python", "responses"), ("Python", "messages"),
           ("Node", "chat"), ("Node", "completions"), ("Node", "responses"), ("Node", "messages")]


def package(client, api):
    return ("anthropic" if api == "messages" else "openai") + " (" + client + ")"


def cell(shown, mode, client, api, cases):
    return " or ".join(sorted({f"`{v[7:]}`" if v.startswith("raises ") else f"**{v}**" for k, v in shown[mode].items()
                               if k[:3] == (client, api, "stream") and k[3] in cases}))


def table(shown):
    between = set(SHARED + OWN) - {"reset-inside-an-event", "reset-before-head", "engine-error"}
    lines = []
    for title, cases in (("between two events", between), ("inside an event", {"reset-inside-an-event"}), ("the model server's own error event", {"engine-error"})):
        lines += [f"| {title} | API | `both` | `error_event` | `abort` |", "|---|---|---|---|---|"]
        for client, api in CLIENTS:
            lines.append(f"| {package(client, api)} | {api} | " + " | ".join(cell(shown, m, client, api, cases) for m in MODES) + " |")
        lines.append("")
    return "\n".join(lines).rstrip()


def test_default_raises_in_every_case(shown):
    silent = {k: v for k, v in shown["both"].items() if k != "executed" and not v.startswith("raises ")}
    assert not silent


def test_pieces_raise_in_every_mode(shown):
    for mode in MODES:
        silent = {k: v for k, v in shown[mode].items() if k != "executed" and k[2] == "piece" and not v.startswith("raises ")}
        assert not silent, mode


def test_no_client_sends_it_again(shown):
    """With their default of two retries. What the head of an answer cannot say any more is the exception: a body of unknown
    length that breaks off."""
    for mode in MODES:
        again = {k: n for k, n in shown[mode]["executed"].items() if n > 1 and not k.endswith(".chunked-cut")}
        assert not again, mode


def test_page_has_what_they_showed(shown):
    begin, end = "<!-- shown -->\n", "\n<!-- end -->"
    page = PAGE.read_text()
    before, rest = page.split(begin)
    old, after = rest.split(end)
    if os.environ.get("UPDATE"):
        PAGE.write_text(before + begin + table(shown) + end + after)
    else:
        assert old == table(shown)
