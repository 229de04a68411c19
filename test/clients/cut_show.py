"""What the official Python clients show of answers that break: cut_show.py URL CASE... prints one JSON object, by what was run."""
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import anthropic
import openai

url, run, cases = sys.argv[1], sys.argv[2], sys.argv[3:]
oai = openai.OpenAI(base_url=url + "/v1", api_key="unused")
ant = anthropic.Anthropic(base_url=url, api_key="unused")


def text(name):
    return f"case={name[2]} run={run}.py.{'.'.join(name)}"


def ask(name):
    api, how, _ = name
    stream = {"stream": True} if how == "stream" else {}
    prompt = [{"role": "user", "content": text(name)}]
    if api == "chat":
        return oai.chat.completions.create(model="m", messages=prompt, **stream)
    if api == "completions":
        return oai.completions.create(model="m", prompt=text(name), **stream)
    if api == "responses":
        return oai.responses.create(model="m", input=text(name), **stream)
    return ant.messages.create(model="m", max_tokens=64, messages=prompt, **stream)


def show(name):
    last = None
    try:
        answer = ask(name)
        if name[1] == "stream":
            for event in answer:
                last = event
    except Exception as e:
        return "raises " + type(e).__module__.split(".")[0] + "." + type(e).__name__
    kind = getattr(last, "type", "")
    if kind in ("error", "response.failed"):
        return "ends with an event `" + kind + "`"
    return "looks complete"


names = [(api, how, case) for case in cases for api in ("chat", "completions", "responses", "messages") for how in ("stream", "piece")]
with ThreadPoolExecutor(48) as pool:
    print(json.dumps({".".join(n): s for n, s in zip(names, pool.map(show, names))}))
