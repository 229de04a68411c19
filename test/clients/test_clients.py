"""The official Python clients against the gateway: what a user's program does, without a line of adaptation."""
import os

import anthropic
import httpx
import openai
import pytest

URL = os.environ["POINTSMAN"]
oai = openai.OpenAI(base_url=URL + "/v1", api_key="unused", max_retries=0)
ant = anthropic.Anthropic(base_url=URL, api_key="unused", max_retries=0)
HELLO = [{"role": "user", "content": "Say hello to the railway."}]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather of a town",
                                           "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}}}]


def test_chat():
    raw = oai.chat.completions.with_raw_response.create(model="tiny", messages=HELLO, max_tokens=8)
    answer = raw.parse()
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens <= 8
    assert raw.headers["x-pointsman-request-id"]
    assert "x-pointsman-endpoint" not in raw.headers


def test_chat_stream():
    parts = list(oai.chat.completions.create(model="tiny", messages=HELLO, max_tokens=8, stream=True,
                                             stream_options={"include_usage": True}))
    assert parts[0].choices[0].delta.role == "assistant"
    assert [p.choices[0].finish_reason for p in parts if p.choices][-1] in ("stop", "length")
    assert parts[-1].usage.completion_tokens <= 8


def test_chat_with_tools_and_parts():
    answer = oai.chat.completions.create(model="tiny", max_tokens=8, tools=TOOLS, tool_choice="none", messages=[
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "What is the weather in Bern?"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"town\": \"Bern\"}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "Rain."},
    ])
    assert answer.usage.prompt_tokens > 10


def test_second_turn_is_cached():
    messages = [{"role": "system", "content": "You are the station master. " * 30}, {"role": "user", "content": "When does it leave?"}]
    first = oai.chat.completions.create(model="tiny", messages=messages, max_tokens=16)
    messages += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "And from which track?"}]
    second = oai.chat.completions.create(model="tiny", messages=messages, max_tokens=16)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens // 16 * 16 - 16


def test_completions():
    answer = oai.completions.create(model="tiny", prompt="The train", max_tokens=4)
    assert answer.choices[0].text
    two = oai.completions.create(model="tiny", prompt=[[1, 2, 3], [4, 5, 6, 7]], max_tokens=2)
    assert len(two.choices) == 2


def test_responses():
    answer = oai.responses.create(model="tiny", input="Say hello.", max_output_tokens=8)
    assert answer.status in ("completed", "incomplete")
    kinds = [e.type for e in oai.responses.create(model="tiny", input="Say hello.", max_output_tokens=8, stream=True)]
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")


def test_embeddings():
    answer = oai.embeddings.create(model="tiny", input=["one", "two"], encoding_format="float")
    assert len(answer.data) == 2 and len(answer.data[0].embedding) > 0


def test_models():
    assert [m.id for m in oai.models.list()] == ["alias", "tiny"] or {m.id for m in oai.models.list()} == {"tiny", "alias"}
    assert oai.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        oai.models.retrieve("Org/absent")


def test_messages():
    answer = ant.messages.create(model="tiny", max_tokens=8, system="Be short.", messages=HELLO)
    assert answer.type == "message" and answer.usage.output_tokens <= 8
    count = ant.messages.count_tokens(model="tiny", messages=HELLO)
    assert count.input_tokens > 0


def test_messages_stream():
    with ant.messages.stream(model="tiny", max_tokens=8, messages=HELLO) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text and final.stop_reason in ("end_turn", "max_tokens")


def test_unknown_model_names_the_near_miss():
    with pytest.raises(openai.NotFoundError) as e:
        oai.chat.completions.create(model="tinny", messages=HELLO)
    assert "tiny" in str(e.value) and e.value.response.headers["x-pointsman-reason"] == "unknown_model"
    with pytest.raises(anthropic.NotFoundError) as e:
        ant.messages.create(model="tinny", max_tokens=4, messages=HELLO)
    assert e.value.body["type"] == "error" and "tiny" in e.value.body["error"]["message"]


def test_wrong_parameter_is_the_engines_error():
    with pytest.raises(openai.BadRequestError) as e:
        oai.chat.completions.create(model="tiny", messages=HELLO, temperature=-5)
    assert "temperature" in str(e.value)


def test_too_long_prompt():
    with pytest.raises(openai.BadRequestError) as e:
        oai.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a long story " * 4000}])
    assert "maximum context length" in str(e.value)


def test_malformed_json_contacts_nobody():
    r = httpx.post(URL + "/v1/chat/completions", content=b'{"model": "tiny", "messages": [', headers={"content-type": "application/json"})
    assert r.status_code == 400 and r.json()["error"]["message"] and r.headers["x-pointsman-reason"] == "bad_json"


def test_control_paths_are_closed():
    for path in ("/sleep", "/v1/../sleep", "/reset_prefix_cache", "//server_info", "/v1/load_lora_adapter", "/metrics"):
        r = httpx.Client().request("POST", httpx.URL(URL).copy_with(raw_path=path.encode()))
        assert r.status_code == 404, path
