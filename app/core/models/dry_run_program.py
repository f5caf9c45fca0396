"""The throw-away program that lets the engine simulate a load: no weights, no buffers, only sums.

Started by `dry_run.py` as `coolhead dry-run`, with one JSON object on stdin; the engine's log goes to
stderr, and the engine aborts once it has printed its breakdown. Never imported by the app itself.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

EXPERT_TENSORS = r"blk\.({blocks})\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
VERBOSITY_DEBUG = 5
"""The sizes of caches and buffers are printed at this level during a simulation."""


def main(argv: Sequence[str] = ()) -> int:
    """Simulates what stdin asks for; in the end the engine aborts, so this seldom returns."""
    del argv
    _die_with_parent()
    job = json.loads(sys.stdin.buffer.read(1 << 20))
    import xllamacpp

    try:
        xllamacpp.Server(parameters(xllamacpp, job))
    except RuntimeError as error:
        print(f"dry run failed: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def parameters(xllamacpp: Any, job: Mapping[str, Any]) -> Any:
    """llama.cpp's parameters for a simulation of `job`: the model alone, without companions."""
    params = xllamacpp.CommonParams()
    params.model.path = job["path"]
    params.n_ctx = job["context_tokens"] * job["slots"]
    params.n_parallel = job["slots"]
    params.kv_unified = job["kv_unified"]
    params.swa_full = job["swa_full"]
    params.cache_type_k = xllamacpp.ggml_type[f"GGML_TYPE_{job['kv_type_k'].upper()}"]
    params.cache_type_v = xllamacpp.ggml_type[f"GGML_TYPE_{job['kv_type_v'].upper()}"]
    params.n_batch = job["batch_tokens"]
    params.n_ubatch = job["ubatch_tokens"]
    flash = xllamacpp.llama_flash_attn_type
    params.flash_attn_type = (
        flash.LLAMA_FLASH_ATTN_TYPE_ENABLED
        if job["flash_attention"]
        else flash.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )
    params.n_gpu_layers = job["gpu_layers"]
    if job["tensor_split"]:
        room = len(params.tensor_split)
        shares = [float(share) for share in job["tensor_split"]][:room]
        params.tensor_split = [*shares, *[0.0] * (room - len(shares))]
    if job["experts_in_ram"]:
        blocks = "|".join(str(block) for block in range(job["experts_in_ram"]))
        params.tensor_buft_overrides = EXPERT_TENSORS.format(blocks=blocks)
    if job["gpu_layers"] == 0:
        params.no_kv_offload = True
        params.no_op_offload = True
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.fit_params = True
    params.fit_params_print = True
    params.no_alloc = True
    params.verbosity = VERBOSITY_DEBUG
    return params


def _die_with_parent() -> None:
    """On Linux the kernel ends us with the app; a deadline of the app's does it elsewhere."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            pr_set_pdeathsig = 1
            ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if hasattr(os, "nice"):
        os.nice(5)


if __name__ == "__main__":
    sys.exit(main())
