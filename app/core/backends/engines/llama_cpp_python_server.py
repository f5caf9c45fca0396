"""The worker program around llama-cpp-python's server: one request at a time, the others wait.

Started by the guard as `coolhead worker llama-cpp-python`. Its defaults are made for a lone user: a new
request interrupts the running one, logits are kept for every position (hundreds of MiB), weights are
locked into RAM. All of that is set otherwise here.
"""

import os
import socket
import threading
from collections.abc import Sequence
from typing import Any

from app.core.backends.engines.link import ReadyLine, StartLine, WorkerEnd


def main(argv: Sequence[str] = ()) -> int:
    """Loads, says so, and serves until the app closes the link; 1 when the model did not load."""
    del argv
    # Its settings class reads the environment too; a variable of the user's must not change a load.
    os.environ.pop("CONFIG_FILE", None)
    link = WorkerEnd()
    import llama_cpp
    import uvicorn
    from llama_cpp.server.app import create_app
    from llama_cpp.server.model import LlamaProxy
    from llama_cpp.server.settings import ModelSettings, ServerSettings

    start = link.start
    name_answers(LlamaProxy, start.model_id)
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind(("127.0.0.1", 0))
    port = int(sock.getsockname()[1])
    server_settings = ServerSettings(
        host="127.0.0.1",
        port=port,
        api_key=start.key,
        interrupt_requests=False,
        disable_ping_events=True,
    )
    try:
        model_settings = ModelSettings(**parameters(llama_cpp, start))
        web = create_app(server_settings=server_settings, model_settings=[model_settings])
    except (ValueError, RuntimeError, OSError) as error:
        link.failed(str(error))
        return 1
    config = uvicorn.Config(web, log_level="warning", access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    serving = threading.Thread(target=server.run, args=([sock],), daemon=True, name="http")
    serving.start()
    while not server.started and serving.is_alive():
        serving.join(0.02)
    return link.serve(ReadyLine(port, start.load.context_tokens, 1, str(llama_cpp.__version__)))


def name_answers(proxy: Any, model_id: str) -> None:
    """Answers to requests that name no model would carry the file's path; now the model's id."""
    load = proxy.load_llama_from_model_settings

    def load_named(settings: Any) -> Any:
        llama = load(settings)
        llama.model_path = model_id  # once it is loaded, the name in answers is its only use
        return llama

    proxy.load_llama_from_model_settings = staticmethod(load_named)


def parameters(llama_cpp: Any, start: StartLine) -> dict[str, Any]:
    """The model settings of llama-cpp-python's server, each value ours."""
    load = start.load
    return {
        "model": start.path,
        "model_alias": start.model_id,
        "n_ctx": load.context_tokens,
        "n_batch": load.batch_tokens,
        "n_ubatch": load.ubatch_tokens,
        "n_threads": load.threads,
        "n_threads_batch": load.threads,
        "n_gpu_layers": load.gpu_layers,
        "tensor_split": list(load.tensor_split) or None,
        "offload_kqv": load.gpu_layers > 0,
        "type_k": _ggml_type(llama_cpp, load.kv_type_k),
        "type_v": _ggml_type(llama_cpp, load.kv_type_v),
        "flash_attn": load.flash_attention,
        "use_mmap": load.mmap,
        "use_mlock": False,
        "logits_all": False,
        "lora_path": load.adapters[0] if load.adapters else None,
        "cache": load.prompt_cache_bytes > 0,
        "cache_size": load.prompt_cache_bytes,
        "verbose": True,  # what it says of a failed load comes this way only
    }


def _ggml_type(llama_cpp: Any, name: str) -> int:
    return int(getattr(llama_cpp, f"GGML_TYPE_{name.upper()}"))
