"""The worker program around xllamacpp: llama.cpp's own server on a loopback port of its own.

Started by the guard as `coolhead worker xllamacpp`. `Server()` holds the interpreter for the whole
load, so nothing in here can answer meanwhile: progress is watched from outside, and a load is ended
by a signal. Every parameter that costs memory is set here from the start line; none is the engine's
default, whose prompt cache alone may grow to 8 GiB.
"""

import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from app.core.backends.engines.link import ReadyLine, StartLine, WorkerEnd

MIB = 1024 * 1024
EXPERT_TENSORS = r"blk\.({blocks})\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
"""llama.cpp's pattern for the expert tensors of some blocks, as its `--n-cpu-moe` builds it."""


def main(argv: Sequence[str] = ()) -> int:
    """Loads, says so, and serves until the app closes the link; 1 when the model did not load."""
    del argv
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    link = WorkerEnd()
    import xllamacpp

    try:
        server = xllamacpp.Server(parameters(xllamacpp, link.start))
    except RuntimeError as error:
        link.failed(str(error))
        return 1
    load = link.start.load
    port = urlsplit(server.listening_address).port or 0
    return link.serve(ReadyLine(port, load.context_tokens, load.slots, str(xllamacpp.__version__)))


def parameters(xllamacpp: Any, start: StartLine) -> Any:
    """llama.cpp's parameters for a start line."""
    load = start.load
    params = xllamacpp.CommonParams()
    params.model.path = start.path
    params.model_alias = {start.model_id}
    params.mmproj.path = load.mmproj
    params.lora_adapters = [_adapter(xllamacpp, path) for path in load.adapters]
    if load.draft:
        params.speculative.draft.mparams.path = load.draft
        params.speculative.types = [
            xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE
        ]
        params.speculative.draft.n_gpu_layers = load.gpu_layers
        params.speculative.draft.cpuparams.n_threads = load.threads
        params.speculative.draft.cpuparams_batch.n_threads = load.threads

    # Memory: what the plan has priced, and nothing that the engine would choose for itself.
    params.n_ctx = load.engine_context_tokens
    params.n_parallel = load.slots
    params.kv_unified = load.kv_unified
    params.swa_full = load.swa_full
    params.cache_type_k = xllamacpp.ggml_type[f"GGML_TYPE_{load.kv_type_k.upper()}"]
    params.cache_type_v = xllamacpp.ggml_type[f"GGML_TYPE_{load.kv_type_v.upper()}"]
    params.n_batch = load.batch_tokens
    params.n_ubatch = load.ubatch_tokens
    params.cache_ram_mib = load.prompt_cache_bytes // MIB
    params.cache_idle_slots = load.prompt_cache_bytes > 0
    params.n_ctx_checkpoints = load.checkpoints
    params.fit_params = False
    params.ctx_shift = False
    modes = xllamacpp.llama_load_mode
    params.load_mode = modes.LLAMA_LOAD_MODE_MMAP if load.mmap else modes.LLAMA_LOAD_MODE_NONE
    params.lazy_mode = xllamacpp.llama_lazy_mode.LLAMA_LAZY_MODE_OFF
    flash = xllamacpp.llama_flash_attn_type
    params.flash_attn_type = (
        flash.LLAMA_FLASH_ATTN_TYPE_ENABLED
        if load.flash_attention
        else flash.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )

    # Placement.
    params.n_gpu_layers = load.gpu_layers
    if load.tensor_split:
        room = len(params.tensor_split)
        params.tensor_split = [*load.tensor_split, *[0.0] * (room - len(load.tensor_split))]
    if load.experts_in_ram:
        blocks = "|".join(str(block) for block in range(load.experts_in_ram))
        params.tensor_buft_overrides = EXPERT_TENSORS.format(blocks=blocks)
    if load.gpu_layers == 0:
        params.no_kv_offload = True
        params.no_op_offload = True
        params.mmproj_use_gpu = False

    params.cpuparams.n_threads = load.threads
    params.cpuparams_batch.n_threads = load.threads
    params.warmup = True

    # The endpoint: loopback, a free port, our key, and only what the router asks for.
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [start.key]
    params.ui = False
    params.endpoint_slots = True
    params.endpoint_props = False
    params.endpoint_metrics = True
    params.sse_ping_interval = -1  # the router sends each wire's own
    params.cont_batching = True
    params.use_jinja = True
    return params


def _adapter(xllamacpp: Any, path: str) -> Any:
    adapter = xllamacpp.CommonAdapterLoraInfo()
    adapter.path = path
    adapter.scale = 1.0
    return adapter
