"""The compute buffer, the output buffer, and what the engine takes besides.

Pure; called by `plan.py`. The compute buffer is what ggml's graph allocator reserves for the worst
step (`sched_reserve` in llama-context.cpp); the formulas are fitted on the engine's dry run.
"""

from collections.abc import Sequence

from app.core.models.load_settings import LoadSettings
from app.core.models.plan_kv import slot_cells, window_cells
from app.core.models.plan_layer import Layer
from app.core.models.plan_shape import Shape

MIB = 1 << 20
# Measured on Linux, Python 3.11, the default engine, once it is imported: 13 MiB anonymous and
# 19 MiB of mapped libraries; its server's threads, buffers and allocator slack.
PROCESS_BYTES = 32 * MIB
SERVER_BYTES = 16 * MIB
# A tokenizer keeps each token as text, by number and by text, and each merge as a pair: measured.
VOCABULARY_ENTRY_BYTES = 160
# A driver's context and kernels on its device, and what the runtime takes of RAM. Not measured on
# every card; learning corrects it.
GPU_CONTEXT_BYTES = 450 * MIB
GPU_HOST_BYTES = 250 * MIB


def step_tokens(settings: LoadSettings) -> int:
    """The physical batch: no larger than the logical one or the context.

    The worst step is reserved with the same number of tokens for each sequence (`sched_reserve` in
    llama-context.cpp), rounded up; taken here at its most, so that memory grows with the slots.
    """
    context = max(1, settings.engine_context_tokens)
    tokens = max(1, min(settings.ubatch_tokens, settings.batch_tokens, context))
    return tokens if settings.kv_unified else tokens + max(1, settings.slots) - 1


def mask_bytes(shape: Shape, settings: LoadSettings) -> int:
    """Attention masks: a row of cells for each token of the batch.

    Source: `build_attn_inp_kv` and `build_attn_inp_kv_iswa` (llama-graph.cpp): f16 with flash
    attention, f32 without; one for the full cache and one for the windows.
    """
    if not any(layer.k_row for layer in shape.layers):
        return 0
    cells = 0
    if any(layer.k_row and not layer.has_window for layer in shape.layers):
        cells += slot_cells(settings)
    if any(layer.has_window for layer in shape.layers):
        cells += window_cells(shape, settings)
    return cells * step_tokens(settings) * (2 if settings.flash_attention else 4)


def compute_bytes(shape: Shape, settings: LoadSettings, layers: Sequence[Layer]) -> int:
    """The buffer of one device that computes `layers`.

    The widest layer's working set for each token (`Layer.step_elements`), the masks, recurrent
    scans for each sequence, and without flash attention the scores: cells x tokens x heads floats.
    """
    if not layers:
        return 0
    tokens = step_tokens(settings)
    sequences = max(1, settings.slots)
    work = max(4 * layer.step_elements * tokens for layer in layers)
    # A scan holds each sequence's state twice: as it was and as it becomes.
    scan = max(
        4 * layer.scan_elements * tokens
        + 8 * (layer.conv_elements + layer.state_elements) * sequences
        for layer in layers
    )
    scores = 0
    if not settings.flash_attention:
        scores = (
            4
            * tokens
            * max(
                (
                    layer.score_elements + layer.heads * _cells(layer, shape, settings)
                    for layer in layers
                    if layer.k_row
                ),
                default=0,
            )
        )
    logits = 4 * shape.vocabulary * sequences
    return max(work, scores, scan, logits) + mask_bytes(shape, settings)


def _cells(layer: Layer, shape: Shape, settings: LoadSettings) -> int:
    return window_cells(shape, settings) if layer.has_window else slot_cells(settings)


def host_input_bytes(shape: Shape, settings: LoadSettings) -> int:
    """What RAM keeps of a step that a GPU computes: embeddings in, masks."""
    return 4 * shape.embedding * step_tokens(settings) + mask_bytes(shape, settings)


def output_bytes(shape: Shape, settings: LoadSettings) -> int:
    """Logits of one token for each sequence (`output_reserve` in llama-context.cpp), in f32."""
    return 4 * shape.vocabulary * max(1, settings.slots)


def engine_bytes(shape: Shape, settings: LoadSettings, gpu_count: int) -> int:
    """Process, libraries, tokenizer, samplers and scratch of the CPU backend, in RAM.

    The CPU backend converts the rows of a product to the weights' companion type in a buffer of
    its own (`ggml_graph_plan`): 34 bytes for 32 of the widest row. A slot's sampler sorts all
    tokens: 12 bytes each, twice.
    """
    widest = max((layer.step_elements for layer in shape.layers), default=0)
    scratch = widest * step_tokens(settings) * 34 // 32 // 3
    samplers = 24 * shape.vocabulary * max(1, settings.slots)
    return (
        PROCESS_BYTES
        + SERVER_BYTES
        + VOCABULARY_ENTRY_BYTES * shape.vocabulary_entries
        + scratch
        + samplers
        + (GPU_HOST_BYTES if gpu_count else 0)
    )
