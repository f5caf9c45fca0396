"""The worker program around mlx-lm's server: MLX models, on Apple silicon and on Linux for tests.

Started by the guard as `coolhead worker mlx`. Memory, buffer cache and (on Metal) nothing wired are set
before a weight is read. mlx-lm's server trusts its caller: it has no key, no end to its context, and
loads whatever model a request names. Here a key is asked for, prompts and answers end at the context
that was planned, and the one model that was planned is the only one.
"""

import argparse
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import ThreadingHTTPServer
from typing import Any

from app.core.backends.engines.link import ReadyLine, StartLine, WorkerEnd

MIB = 1024 * 1024
DEFAULT = "default_model"
DEFAULT_ANSWER_TOKENS = 512


class PromptTooLong(Exception):
    """Raised while a request is tokenised; becomes a 400 in llama.cpp's words."""

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        super().__init__(
            f"the request exceeds the available context size ({prompt_tokens} of {context_tokens})"
        )
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class Answered(BaseException):
    """The handler has answered already; not an Exception, so that mlx-lm does not answer again."""


def main(argv: Sequence[str] = ()) -> int:
    """Loads, says so, and serves until the app closes the link; 1 when the model did not load."""
    del argv
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    link = WorkerEnd()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    start = link.start
    import mlx.core as mx

    mx.set_memory_limit(int(start.options["memory_limit_bytes"]))
    mx.set_cache_limit(int(start.options["cache_limit_bytes"]))
    import mlx_lm
    from mlx_lm import server

    provider = make_provider(server, start)
    generator = make_generator(server, provider, start)
    while not provider.loaded.wait(0.05):
        if not generator.generation_available():
            link.failed(provider.problem or "the generation thread ended")
            sys.stderr.flush()
            os._exit(1)
    handler = make_handler(server, generator, start, mx)
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    httpd.daemon_threads = True
    threading.Thread(target=httpd.serve_forever, daemon=True, name="http").start()
    load = start.load
    version = str(getattr(mlx_lm, "__version__", ""))
    return link.serve(ReadyLine(httpd.server_port, load.context_tokens, load.slots, version))


def arguments(start: StartLine) -> argparse.Namespace:
    """mlx-lm's own command line, each value ours."""
    load = start.load
    return argparse.Namespace(
        model=start.path,
        adapter_path=load.adapters[0] if load.adapters else None,
        draft_model=load.draft or None,
        num_draft_tokens=3,
        trust_remote_code=False,
        chat_template="",
        use_default_chat_template=False,
        allowed_origins=[],
        temp=0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        max_tokens=min(DEFAULT_ANSWER_TOKENS, load.context_tokens),
        chat_template_args={},
        decode_concurrency=load.slots,
        prompt_concurrency=1,
        prefill_step_size=load.batch_tokens,
        # One conversation a slot, and no more bytes than the plan has for it.
        prompt_cache_size=load.slots,
        prompt_cache_bytes=load.prompt_cache_bytes or kv_bytes(start),
        kv_bits={"q8_0": 8, "q4_0": 4}.get(load.kv_type_k),
        kv_group_size=64,
        quantized_kv_start=0,
        pipeline=False,
    )


def kv_bytes(start: StartLine) -> int:
    """What the plan has for the KV cache of all slots."""
    return max(MIB, int(start.options.get("kv_bytes", "0")))


def make_provider(server: Any, start: StartLine) -> Any:
    """mlx-lm's model provider, held to the one model, which says when it is loaded."""

    class Provider(server.ModelProvider):  # type: ignore[misc]  # mlx-lm ships no types
        def __init__(self) -> None:
            super().__init__(arguments(start))
            self.loaded = threading.Event()
            self.problem = ""

        def load_default(self) -> None:
            try:
                super().load(DEFAULT, None, DEFAULT)
            except Exception as error:
                self.problem = f"{type(error).__name__}: {error}"
                raise
            self.loaded.set()

        def load(self, *_: object, **__: object) -> Any:
            return super().load(DEFAULT, None, DEFAULT)

    return Provider()


def make_generator(server: Any, provider: Any, start: StartLine) -> Any:
    """mlx-lm's generator, whose requests all mean our model and end at our context."""
    context = start.load.context_tokens

    class Generator(server.ResponseGenerator):  # type: ignore[misc]  # mlx-lm ships no types
        def generate(self, request: Any, generation_args: Any, *args: Any, **kwargs: Any) -> Any:
            generation_args.model = server.ModelDescription(DEFAULT, DEFAULT, None)
            return super().generate(request, generation_args, *args, **kwargs)

        def _tokenize(self, tokenizer: Any, request: Any, args: Any) -> Any:
            found = super()._tokenize(tokenizer, request, args)
            prompt_tokens = len(found[0])
            if prompt_tokens >= context:
                raise PromptTooLong(prompt_tokens, context)
            args.max_tokens = min(args.max_tokens, context - prompt_tokens)
            return found

    cache = server.LRUPromptCache(provider.cli_args.prompt_cache_size)
    return Generator(provider, cache)


def make_handler(server: Any, generator: Any, start: StartLine, mx: Any) -> Any:
    """mlx-lm's HTTP handler behind a key, with /slots, /memory and errors as objects."""
    busy: set[int] = set()

    class Handler(server.APIHandler):  # type: ignore[misc]  # mlx-lm ships no types
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(generator, *args, system_fingerprint="mlx", **kwargs)

        def log_message(self, *_: object) -> None:
            """Requests are logged by the router."""

        def do_GET(self) -> None:  # noqa: N802 - http.server's name
            if self.path == "/health":
                super().do_GET()
            elif not self.has_key():
                return
            elif self.path == "/v1/models":
                self.say(
                    200, {"object": "list", "data": [{"id": start.model_id, "object": "model"}]}
                )
            elif self.path == "/slots":
                self.say(200, list(slots(start, len(busy))))
            elif self.path == "/memory":
                self.say(200, memory(mx))
            else:
                super().do_GET()

        def do_POST(self) -> None:  # noqa: N802 - http.server's name
            if not self.has_key():
                return
            busy.add(id(self))
            try:
                super().do_POST()
            except Answered:
                pass
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            finally:
                busy.discard(id(self))

        def handle_completion(self, request: Any, stop_words: Any) -> None:
            self.response_generator = Catching(generator, self.refuse)
            self.requested_model = start.model_id  # what answers name
            super().handle_completion(request, stop_words)

        def refuse(self, error: Exception) -> None:
            if isinstance(error, PromptTooLong):
                told: dict[str, object] = {
                    "code": 400,
                    "message": str(error),
                    "type": "exceed_context_size_error",
                    "n_prompt_tokens": error.prompt_tokens,
                    "n_ctx": error.context_tokens,
                }
                self.say(400, {"error": told})
            else:
                self.say(
                    500, {"error": {"code": 500, "message": str(error), "type": "server_error"}}
                )
            raise Answered

        def has_key(self) -> bool:
            if self.headers.get("Authorization") == f"Bearer {start.key}":
                return True
            self.say(401, {"error": {"code": 401, "message": "Invalid API Key"}})
            return False

        def say(self, status: int, data: object) -> None:
            body = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


class Catching:
    """The generator, but a request that it refuses is answered by `refuse`."""

    def __init__(self, generator: Any, refuse: Callable[[Exception], None]) -> None:
        self._generator = generator
        self._refuse = refuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._generator.generate(*args, **kwargs)
        except Exception as error:  # the request edge of this program
            logging.getLogger(__name__).warning("refused: %s", error)
            self._refuse(error)
            raise


def slots(start: StartLine, busy: int) -> Iterator[dict[str, object]]:
    """As llama.cpp tells them."""
    for number in range(start.load.slots):
        yield {"id": number, "n_ctx": start.load.context_tokens, "is_processing": number < busy}


def memory(mx: Any) -> dict[str, int]:
    """MLX's own figures, in bytes."""
    return {
        "active_bytes": mx.get_active_memory(),
        "cache_bytes": mx.get_cache_memory(),
        "peak_bytes": mx.get_peak_memory(),
    }
