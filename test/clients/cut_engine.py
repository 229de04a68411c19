"""A model server whose every answer breaks, in the way that the prompt names: "case=reset", "case=early-end", ..."""
import asyncio
import json
import re
import socket
import struct
import threading

DIED = '{"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": null, "code": 500}}'
PAGE = ('vllm:num_requests_running{engine="0",model_name="m"} 0.0\nvllm:num_requests_waiting{engine="0",model_name="m"} 0.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0\n')
USAGE = {"prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 22}


def data(value, event=None):
    return (f"event: {event}\n" if event else "") + "data: " + (value if isinstance(value, str) else json.dumps(value)) + "\n\n"


class Chat:
    def piece(self, n, text, finish=None):
        return data({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m",
                     "choices": [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": finish}]})

    head = ""
    died = data(DIED)

    def end(self):
        return self.piece(0, "", "stop") + data("[DONE]")

    def abort(self):
        return self.piece(0, "", "abort") + data("[DONE]")

    def whole(self, finish="stop"):
        return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "usage": USAGE, "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "one two"}, "finish_reason": finish}]}


class Completions(Chat):
    def piece(self, n, text, finish=None):
        return data({"id": "x", "object": "text_completion", "created": 1, "model": "m",
                     "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]})

    def whole(self, finish="stop"):
        return {"id": "x", "object": "text_completion", "created": 1, "model": "m", "usage": USAGE, "choices": [
            {"index": 0, "text": "one two", "logprobs": None, "finish_reason": finish}]}


class Responses:
    base = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    head = (data({"type": "response.created", "sequence_number": 0, "response": {**base, "status": "in_progress", "output": []}}, "response.created")
            + data({"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": item}, "response.output_item.added")
            + data({"type": "response.content_part.added", "sequence_number": 2, "output_index": 0, "content_index": 0, "item_id": "msg_1",
                    "part": part}, "response.content_part.added"))
    died = data({"type": "error", "code": "server_error", "message": "EngineCore encountered an issue.", "param": None, "sequence_number": 9}, "error")

    def piece(self, n, text):
        return data({"type": "response.output_text.delta", "sequence_number": 3 + n, "item_id": "msg_1", "output_index": 0, "content_index": 0,
                     "delta": text, "logprobs": []}, "response.output_text.delta")

    def end(self):
        return data({"type": "response.completed", "sequence_number": 9, "response": self.whole()}, "response.completed")

    abort = None

    def whole(self, _=""):
        return {**self.base, "status": "completed", "output": [{**self.item, "status": "completed", "content": [{**self.part, "text": "one two"}]}],
                "usage": {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 2,
                          "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 22}}


class Messages:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None, "stop_sequence": None,
               "usage": {"input_tokens": 20, "output_tokens": 0}}
    head = (data({"type": "message_start", "message": message}, "message_start")
            + data({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}, "content_block_start"))
    died = data({"type": "error", "error": {"type": "api_error", "message": "EngineCore encountered an issue."}}, "error")

    def piece(self, n, text):
        return data({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}, "content_block_delta")

    def end(self):
        return (data({"type": "content_block_stop", "index": 0}, "content_block_stop")
                + data({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 2}},
                       "message_delta") + data({"type": "message_stop"}, "message_stop"))

    abort = None

    def whole(self, _=""):
        return {**self.message, "content": [{"type": "text", "text": "one two"}], "stop_reason": "end_turn"}


APIS = {"/v1/chat/completions": Chat(), "/v1/completions": Completions(), "/v1/responses": Responses(), "/v1/messages": Messages()}


class Engine:
    """Listens on loopback from a thread of its own until the process ends."""

    def __init__(self):
        self.executed = {}  # by path and prompt
        self.sick = False
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()

        async def start():
            server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            await server.serve_forever()

        threading.Thread(target=lambda: self.loop.run_until_complete(start()), daemon=True).start()
        ready.wait()
        self.url = f"http://127.0.0.1:{self.port}"

    async def serve(self, r, w):
        try:
            while head := await r.readuntil(b"\r\n\r\n"):
                method, path, _ = head.decode().split(" ", 2)
                length = re.search(r"content-length: (\d+)", head.decode().lower())
                body = (await r.readexactly(int(length[1]))).decode() if length else ""
                if method == "GET":
                    self.page(w, path)
                    continue
                await self.answer(r, w, path, body)
                break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        w.close()

    def page(self, w, path):
        pages = {"/metrics": PAGE, "/health": "", "/version": '{"version": "0.32.0"}',
                 "/v1/models": '{"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 131072}]}'}
        text = pages.get(path)
        status = "503 Service Unavailable" if self.sick else "404 Not Found" if text is None else "200 OK"
        text = text or ""
        kind = "application/json" if text.startswith("{") else "text/plain; version=0.0.4"
        w.write(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())

    async def answer(self, r, w, path, body):
        case = re.search(r"case=([a-z-]+)", body)[1]
        run = re.search(r"run=([\w.-]+)", body)[1]
        self.executed[run] = self.executed.get(run, 0) + 1
        api = APIS[path.split("?")[0]]
        if case == "reset-before-head":
            return self.reset(w)
        if '"stream":true' in body.replace(" ", ""):
            await self.stream(r, w, api, case)
        else:
            await self.piece(r, w, api, case)

    async def stream(self, r, w, api, case):
        def say(text):
            w.write(f"{len(text):x}\r\n{text}\r\n".encode())

        w.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        say(api.head + api.piece(0, "one "))
        await asyncio.sleep(0.1)
        say(api.piece(1, "two "))
        await asyncio.sleep(0.1)
        if case == "reset":
            return self.reset(w)
        if case == "reset-inside-an-event":
            say(api.piece(2, "three")[:40])
            await asyncio.sleep(0.1)
            return self.reset(w)
        if case == "total-limit":
            for n in range(1000):
                if w.is_closing():
                    return
                say(api.piece(2, "more "))
                await asyncio.sleep(0.3)
        if case in ("idle-limit", "endpoint-gone", "drain-end"):
            await r.read()
        say({"early-end": lambda: ": bye\n\n", "engine-error": lambda: api.died, "abort": lambda: api.abort(),
             "done-without-finish": lambda: data("[DONE]"), "whole": lambda: api.end()}[case]())
        w.write(b"0\r\n\r\n")

    async def piece(self, r, w, api, case):
        text = json.dumps(api.whole("abort" if case == "abort" else "stop"))
        if case in ("total-limit", "endpoint-gone", "drain-end"):
            await r.read()
        if case == "engine-error":
            status = "500 Internal Server Error"
            text = DIED
        else:
            status = "200 OK"
        half = text[:len(text) // 2]
        if case == "chunked-cut":
            w.write(f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n{len(half):x}\r\n{half}\r\n".encode())
            return
        w.write(f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n".encode())
        w.write((half if case == "body-cut" else text).encode())

    @staticmethod
    def reset(w):
        w.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        w.transport.abort()
