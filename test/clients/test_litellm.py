"""A LiteLLM in front, unmodified: every engine's refusal for length that Pointsman hands on is its ContextWindowExceededError, with one
pool and with two, so that its context_window_fallbacks work. Other refusals are not."""
import http.client
import http.server
import json
import os
import pathlib
import subprocess
import threading
import time

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched
import litellm
import ports
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = pathlib.Path(os.environ["OUT"])
ROWS = [line.split("\t") for line in (ROOT / "internal/llmapi/testdata/refusals.txt").read_text().splitlines() if line.count("\t") == 2]
LONG = [(int(s), body) for kind, s, body in ROWS if kind == "long"]
# "string too long" of a parameter is a full window for LiteLLM itself
OTHER = [(int(s), body) for kind, s, body in ROWS if kind == "other" and s in ("400", "422") and not body.startswith("string too long")]


class Engine(http.server.BaseHTTPRequestHandler):
    """Refuses each request in the words that its prompt names by number, or answers it."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path != "/v1/models":
            return self.send(200 if self.path == "/health" else 404, b"{}")
        cards = [{"id": "m", "object": "model", "max_model_len": self.server.window}]
        self.send(200, json.dumps({"object": "list", "data": cards}).encode())

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        content = asked["messages"][-1]["content"]
        text = content if isinstance(content, str) else content[0]["text"]
        list_, _, number = text.partition(" ")
        status, body = {"long": LONG, "other": OTHER}[list_][int(number)]
        if asked.get("stream") and status == 200:
            event = json.dumps({"error": {"message": body, "type": "BadRequestError", "code": 400}})
            return self.send(200, f"data: {event}\n\ndata: [DONE]\n\n".encode(), "text/event-stream")
        self.send(status, body.encode())


@pytest.fixture(scope="module")
def gateway():
    urls = []
    for window in (2048, 32768):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
        server.window, server.daemon_threads = window, True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        urls.append(f"http://127.0.0.1:{server.server_port}")
    api, admin = ports.free(2)
    config = OUT / "litellm.yaml"
    config.write_text(f"""listen: 127.0.0.1:{api}
admin: 127.0.0.1:{admin}
pools:
  - {{name: small, endpoints: ["{urls[0]}"]}}
  - {{name: large, endpoints: ["{urls[1]}"]}}
models:
  - {{name: one, serves: m, pools: [small]}}
  - {{name: two, serves: m, pools: [small, large]}}
""")
    with open(OUT / "litellm-pointsman.log", "w") as log:
        gate = subprocess.Popen([ROOT / "bin/pointsman", "serve", "--config", config], stderr=log)
    try:
        for _ in range(600):
            try:
                c = http.client.HTTPConnection("127.0.0.1", admin)
                c.request("GET", "/readyz")
                if c.getresponse().status == 200:
                    break
            except OSError:
                pass
            time.sleep(0.1)
        else:
            pytest.fail("the gateway is not ready")
        yield f"http://127.0.0.1:{api}"
    finally:
        gate.terminate()
        gate.wait(20)


def ask(gateway, provider, model, prompt, stream=False):
    base = gateway if provider == "anthropic" else gateway + "/v1"
    answer = litellm.completion(model=f"{provider}/{model}", api_base=base, api_key="unused", max_tokens=8, stream=stream, num_retries=0,
                                max_retries=0, messages=[{"role": "user", "content": prompt}])
    return list(answer) if stream else answer


@pytest.mark.parametrize("model", ["one", "two"])
@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "anthropic"])
def test_every_wording(gateway, provider, model):
    missed = []
    for i, (status, body) in enumerate(LONG):
        if status == 200:
            continue  # in streams only
        try:
            ask(gateway, provider, model, f"long {i}")
        except litellm.ContextWindowExceededError:
            continue
        except Exception as e:
            missed.append(f"{status} {body}: {e!r}")
    assert not missed, "\n".join(missed)


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_other_refusals(gateway, provider):
    for i, (status, body) in enumerate(OTHER):
        with pytest.raises(Exception) as e:
            ask(gateway, provider, "two", f"other {i}")
        assert not isinstance(e.value, litellm.ContextWindowExceededError), (body, e.value)


def test_fallback_on_another_group(gateway):
    """What LiteLLM does with it: the group for long prompts is asked, and nothing is tried twice."""
    card = lambda name, model, **more: {"model_name": name, "litellm_params": {"model": "openai/" + model, "api_base": gateway + "/v1", "api_key": "x", **more}}
    router = litellm.Router(model_list=[card("chat", "two"), card("long", "two", mock_response="from the long group")],
                            context_window_fallbacks=[{"chat": ["long"]}], num_retries=0)
    answer = router.completion(model="chat", messages=[{"role": "user", "content": "long 0"}])
    assert answer.choices[0].message.content == "from the long group"


def test_in_a_stream(gateway):
    number = next(i for i, (status, _) in enumerate(LONG) if status == 200)
    with pytest.raises(Exception) as e:
        ask(gateway, "openai", "two", f"long {number}", stream=True)
    assert "context length" in str(e.value)
