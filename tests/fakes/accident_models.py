"""The models of five machines that froze, as header-only files."""

from pathlib import Path

from tests.fakes.gguf_models import (
    FakeModel,
    _attention,
    _base,
    _dense,
    gemma3_27b,
    llama2_7b,
    write_model,
)


def seven_b_f16(folder: Path) -> Path:
    """7B in FP16: multi-head attention, 512 KiB of KV a token."""
    model = llama2_7b()
    model.tensors = [
        (name, shape, kind if kind == "f32" else "f16") for name, shape, kind in model.tensors
    ]
    return write_model(model, folder / "seven-b.gguf")


def twenty_seven_b_q4(folder: Path) -> Path:
    """27B at 4 bit."""
    return write_model(gemma3_27b(), folder / "twenty-seven-b.gguf")


def seven_b_q4(folder: Path) -> Path:
    """7B at 4 bit: 28 layers, 8 KV heads of 128, 112 KiB of KV a token."""
    model = _base(
        "llama", embd=4096, layers=28, heads=32, kv=8, ff=14336, vocab=32000, context=32768
    )
    for layer in range(28):
        _attention(model, layer, 4096, 4096, 1024)
        _dense(model, layer, 4096, 14336)
    return write_model(model, folder / "seven-b-q4.gguf")


def small(folder: Path) -> Path:
    """0.7B."""
    model: FakeModel = _base(
        "llama", embd=1536, layers=24, heads=12, kv=4, ff=4096, vocab=32000, context=4096
    )
    for layer in range(24):
        _attention(model, layer, 1536, 1536, 512)
        _dense(model, layer, 1536, 4096)
    return write_model(model, folder / "small.gguf")
