"""An engine that is none: speaks the start and ready lines and OpenAI's protocol, and misbehaves.

A real program, standard library only, started as a worker by tests: `python fake_engine.py` with the
start line on stdin. Switches are the start line's options, as text:

    load_s              seconds between the start line and the ready line
    load_mib            memory taken while loading
    fail                end with status 1 and these words instead of becoming ready
    token_s             seconds from token to token (0.01)
    crash_after         die by SIGSEGV after so many tokens of an answer
    exit_after          leave with status 3 after so many tokens
    hang_after          send nothing more after so many tokens, and keep the connection
    eat_mib_s           from the first request on, take memory at this rate, without end
    ignore_sigterm      "1": as it says
    stderr              a line to print to stderr before loading
    prefill_s           seconds before the first token, during which the slot counts as busy
    health_s            seconds after the ready line for which /health says 503
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = ("cool", "heads", "keep", "calm", "and", "carry", "on")


class Engine:
    def __init__(self, start: dict[str, Any]) -> None:
        self.start = start
        self.options: dict[str, str] = start["options"]
        self.key: str = start["key"]
        self.model: str = start["model_id"]
        self.slots: int = start["load"]["slots"]
        self.context: int = start["load"]["context_tokens"]
        self.free = threading.Semaphore(self.slots)
        self.lock = threading.Lock()
        self.busy = 0
        self.requests = 0
        self.ready_s = 0.0
        self.eaten: list[bytearray] = []

    def number(self, name: str, default: float = 0.0) -> float:
        return float(self.options.get(name, default))

    def eat(self) -> None:
        rate = self.number("eat_mib_s")
        step = 8 * 1024 * 1024
        while True:
            self.eaten.append(bytearray(b"\1" * step))
            time.sleep(step / (rate * 1024 * 1024))

    def count(self, text: str) -> int:
        return len(text.split())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        engine = self.engine
        if self.path == "/health":
            loading = time.monotonic() - engine.ready_s < engine.number("health_s")
            self.answer(503 if loading else 200, {"status": "loading" if loading else "ok"})
        elif not self.allowed():
            return
        elif self.path.startswith("/slots"):
            slots = [
                {"id": i, "n_ctx": engine.context, "is_processing": i < engine.busy}
                for i in range(engine.slots)
            ]
            self.answer(200, slots)
        elif self.path == "/v1/models":
            self.answer(200, {"object": "list", "data": [{"id": engine.model, "object": "model"}]})
        elif self.path == "/requests":
            self.answer(200, {"requests": engine.requests, "pid": os.getpid()})
        else:
            self.answer(404, {"error": {"message": "not found", "code": 404}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.allowed():
            return
        try:
            request = json.loads(body)
        except ValueError:
            self.answer(400, {"error": {"message": "not JSON", "code": 400}})
            return
        if self.path == "/tokenize":
            self.answer(200, {"tokens": list(range(self.engine.count(request.get("content", ""))))})
        elif self.path == "/apply-template":
            self.answer(200, {"prompt": prompt_of(request)})
        else:
            self.generate(request)

    def generate(self, request: dict[str, Any]) -> None:
        engine = self.engine
        prompt = engine.count(prompt_of(request))
        if prompt > engine.context:
            error = {
                "code": 400,
                "type": "exceed_context_size_error",
                "message": f"request ({prompt} tokens) exceeds the context ({engine.context})",
                "n_prompt_tokens": prompt,
                "n_ctx": engine.context,
            }
            self.answer(400, {"error": error})
            return
        with engine.free:
            with engine.lock:
                engine.busy += 1
                engine.requests += 1
                if engine.requests == 1 and engine.number("eat_mib_s"):
                    threading.Thread(target=engine.eat, daemon=True).start()
            try:
                time.sleep(engine.number("prefill_s"))
                self.tokens(request, prompt)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            finally:
                with engine.lock:
                    engine.busy -= 1

    def tokens(self, request: dict[str, Any], prompt: int) -> None:
        engine = self.engine
        most = int(request.get("max_tokens") or request.get("max_completion_tokens") or 16)
        stream = bool(request.get("stream"))
        is_chat = "chat" in self.path
        if stream:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
        words = []
        for n in range(most):
            self.misbehave(n)
            time.sleep(engine.number("token_s", 0.01))
            words.append(WORDS[n % len(WORDS)] + " ")
            if stream:
                self.event(chunk(engine.model, is_chat, words[-1], None))
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": most,
            "total_tokens": prompt + most,
        }
        if stream:
            self.event(chunk(engine.model, is_chat, "", "length"))
            self.event(chunk(engine.model, is_chat, None, None) | {"choices": [], "usage": usage})
            self.event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")
            return
        text = "".join(words)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        choice |= {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        timings = {
            "prompt_n": prompt,
            "prompt_ms": 1.0,
            "predicted_n": most,
            "predicted_ms": max(1.0, most * engine.number("token_s", 0.01) * 1000),
            "predicted_per_second": 1 / max(0.001, engine.number("token_s", 0.01)),
        }
        self.answer(
            200,
            {
                "id": "fake-1",
                "object": "chat.completion" if is_chat else "text_completion",
                "created": 1,
                "model": engine.model,
                "choices": [choice],
                "usage": usage,
                "timings": timings,
            },
        )

    def misbehave(self, n: int) -> None:
        options = self.engine.options
        if "crash_after" in options and n >= int(options["crash_after"]):
            os.kill(os.getpid(), signal.SIGSEGV)
        if "exit_after" in options and n >= int(options["exit_after"]):
            os._exit(3)
        while "hang_after" in options and n >= int(options["hang_after"]):
            time.sleep(0.1)

    def event(self, data: dict[str, Any] | str) -> None:
        line = data if isinstance(data, str) else json.dumps(data)
        payload = f"data: {line}\n\n".encode()
        self.wfile.write(f"{len(payload):x}\r\n".encode() + payload + b"\r\n")
        self.wfile.flush()

    def allowed(self) -> bool:
        if self.headers.get("Authorization") == f"Bearer {self.engine.key}":
            return True
        self.answer(401, {"error": {"message": "Invalid API Key", "code": 401}})
        return False

    def answer(self, status: int, data: object) -> None:
        payload = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().server_bind()


def prompt_of(request: dict[str, Any]) -> str:
    if "messages" in request:
        return " ".join(str(message.get("content", "")) for message in request["messages"])
    return str(request.get("prompt", ""))


def chunk(model: str, is_chat: bool, text: str | None, finish: str | None) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    if is_chat:
        choice["delta"] = {"content": text} if text else {}
    else:
        choice["text"] = text or ""
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    return {"id": "fake-1", "object": kind, "created": 1, "model": model, "choices": [choice]}


def main() -> None:
    out = os.dup(1)
    os.dup2(2, 1)
    start = json.loads(sys.stdin.buffer.readline())
    engine = Engine(start)
    if engine.options.get("ignore_sigterm") == "1":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "stderr" in engine.options:
        print(engine.options["stderr"], file=sys.stderr, flush=True)
    for _ in range(int(engine.number("load_mib"))):
        engine.eaten.append(bytearray(b"\1" * (1024 * 1024)))
    time.sleep(engine.number("load_s"))
    if "fail" in engine.options:
        print(f"error: {engine.options['fail']}", file=sys.stderr, flush=True)
        os.write(out, json.dumps({"failed": engine.options["fail"]}).encode() + b"\n")
        sys.exit(1)
    Handler.engine = engine
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    engine.ready_s = time.monotonic()
    ready = {"port": server.server_port, "context_tokens": engine.context, "slots": engine.slots}
    os.write(out, json.dumps(ready | {"version": "fake-1"}).encode() + b"\n")
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
