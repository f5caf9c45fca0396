"""KV caches and recurrent state, in bytes for each layer.

Pure; called by `plan.py`.
"""

from dataclasses import replace

from app.core.models.ggml_types import TYPE_BY_NAME
from app.core.models.load_settings import LoadSettings
from app.core.models.plan_layer import Layer, row_bytes
from app.core.models.plan_shape import Shape

PAD = 256


def padded(tokens: int) -> int:
    return (tokens + PAD - 1) // PAD * PAD


def slot_cells(settings: LoadSettings) -> int:
    """Cells of one stream: a slot's, or everyone's where the cache is unified.

    Source: llama_context's constructor (llama-context.cpp): `n_ctx` is padded to 256, shared
    among the sequences, and padded again.
    """
    whole = padded(max(1, settings.engine_context_tokens))
    if settings.kv_unified:
        return whole
    return padded(whole // max(1, settings.slots))


def streams(settings: LoadSettings) -> int:
    return 1 if settings.kv_unified else max(1, settings.slots)


def window_cells(shape: Shape, settings: LoadSettings) -> int:
    """Cells of one stream of the sliding-window cache.

    Source: llama_kv_cache_iswa's constructor (llama-kv-cache-iswa.cpp): window times the
    sequences that share the stream, plus a physical batch, padded to 256.
    """
    cells = slot_cells(settings)
    if settings.swa_full or not shape.window_tokens:
        return cells
    sharing = max(1, settings.slots) if settings.kv_unified else 1
    return padded(min(cells, shape.window_tokens * sharing + settings.ubatch_tokens))


def layer_kv_bytes(layer: Layer, shape: Shape, settings: LoadSettings) -> int:
    """K, V and recurrent state of one layer.

    Source: llama_kv_cache (rows of K and V in the chosen type, for each cell of each stream) and
    llama_memory_recurrent (R and S in f32 for each sequence).
    """
    cells = window_cells(shape, settings) if layer.has_window else slot_cells(settings)
    row = row_bytes(TYPE_BY_NAME[settings.kv_type_k], layer.k_row) + row_bytes(
        TYPE_BY_NAME[settings.kv_type_v], layer.v_row
    )
    state = 4 * (layer.conv_elements + layer.state_elements) * max(1, settings.slots)
    return cells * streams(settings) * row + state


def checkpoint_bytes(shape: Shape, settings: LoadSettings) -> int:
    """Context checkpoints of all slots, at most.

    The server keeps them for models whose cache forgets: each holds a sequence's windows and
    recurrent state (server-context.cpp, `LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY`).
    """
    if settings.checkpoints <= 0:
        return 0
    cells = min(window_cells(shape, settings), shape.window_tokens + settings.ubatch_tokens)
    size = 0
    for layer in shape.layers:
        if layer.has_window and not settings.swa_full:
            size += cells * row_bytes(TYPE_BY_NAME[settings.kv_type_k], layer.k_row)
            size += cells * row_bytes(TYPE_BY_NAME[settings.kv_type_v], layer.v_row)
        size += 4 * (layer.conv_elements + layer.state_elements)
    return size * settings.checkpoints * max(1, settings.slots)


def coarser(shape: Shape | None, settings: LoadSettings) -> LoadSettings | None:
    """`settings` with a KV cache in q8_0; None where the engine would refuse to keep it so."""
    found = replace(settings, kv_type_k="q8_0", kv_type_v="q8_0")
    return None if shape is not None and kv_type_problem(shape, found) else found


def kv_type_problem(shape: Shape, settings: LoadSettings) -> str:
    """Why the engine would refuse the KV types; empty where it would not.

    Source: `llama_init_from_model` (llama-context.cpp): heads must be whole blocks of the type,
    and a quantized V needs flash attention.
    """
    types = (TYPE_BY_NAME[settings.kv_type_k], TYPE_BY_NAME[settings.kv_type_v])
    if types[1].block_elements > 1 and not settings.flash_attention:
        return f"The engine keeps values as {types[1].name} with flash attention only."
    for layer in shape.layers:
        if not layer.kv_heads:
            continue
        for kind, row in zip(types, (layer.k_row, layer.v_row), strict=True):
            length = row // layer.kv_heads
            if length % kind.block_elements:
                return f"The engine cannot keep heads of {length} as {kind.name}; f16 works."
    return ""
