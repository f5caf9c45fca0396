"""Damaged and hostile headers: one kind of error, little memory, and never a crash."""

import contextlib
import io
import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.core.errors import ModelFileInvalid
from app.core.models.gguf import parse_header
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import plan_memory
from app.core.models.spec import spec_of
from tests.fakes import gguf_models

MIB = 1 << 20
PATH = Path("hostile.gguf")
CASES = 10_000
LARGE = (0, 1, 7, 255, 1 << 15, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40, 1 << 62, (1 << 64) - 1)


def _header_bytes(tmp_path: Path, name: str) -> bytes:
    model = gguf_models.MODELS[name]()
    model.tensors = [
        row for row in model.tensors if not row[0].startswith("blk.") or row[0].startswith("blk.0.")
    ]
    model.keys["block_count"] = 1
    path = gguf_models.write_model(model, tmp_path / f"{name}.gguf", {"k.list": [1, 2, 3]}, 20)
    with path.open("rb") as file:
        return file.read(16 * 1024).rstrip(b"\0") + bytes(64)


def _mutations(base: bytes, seed: int, count: int) -> Iterator[tuple[bytes, int]]:
    """Each a file's beginning, and the size that the file claims."""
    chance = random.Random(seed)
    for _ in range(count):
        data = bytearray(base)
        for _ in range(chance.choice((1, 1, 1, 2, 8))):
            at = chance.randrange(len(data) - 8)
            match chance.randrange(5):
                case 0:
                    data[at] = chance.randrange(256)
                case 1:
                    data[at : at + 8] = struct.pack("<Q", chance.choice(LARGE))
                case 2:
                    data[at : at + 4] = struct.pack("<I", chance.choice(LARGE) & 0xFFFFFFFF)
                case 3:
                    del data[at : at + chance.randrange(1, 64)]
                case _:
                    data[at:at] = chance.randbytes(chance.randrange(1, 64))
        if chance.random() < 0.2:
            del data[chance.randrange(1, len(data)) :]
        yield bytes(data), chance.choice((len(data), len(data), 1 << 36, 1 << 44))


def test_mutated_headers_raise_one_error_and_take_little_memory(tmp_path: Path) -> None:
    names = ("llama-1b", "gemma3-27b", "deepseek2-lite", "qwen3next-80b", "granitehybrid-7b")
    bases = [_header_bytes(tmp_path, name) for name in names]
    read = refused = 0
    tracemalloc.start()
    try:
        for number, base in enumerate(bases):
            for data, size in _mutations(base, number, CASES // len(bases)):
                try:
                    header = parse_header(io.BytesIO(data), size, PATH)
                except ModelFileInvalid as error:
                    refused += bool(error.details["reason"])
                    continue
                read += 1
                if read % 4 or not header.text("general.architecture"):
                    continue
                plan = plan_memory(spec_of(header, PATH), LoadSettings(slots=2, checkpoints=2))
                assert plan.own_bytes >= 0
                assert plan.mapped_bytes >= 0
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read + refused == CASES
    assert read > 100
    assert refused > 100
    assert peak < 64 * MIB


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _head(tensors: int, keys: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys)


def _many_tensors() -> bytes:
    rows = (_string(b"t%d" % n) + struct.pack("<IQIQ", 1, 8, 0, 32 * n) for n in range(65_536))
    return _head(65_536, 0) + b"".join(rows) + bytes(65_536 * 32)


def _many_keys() -> bytes:
    return _head(0, 20_000) + b"".join(
        _string(b"k%d" % n) + struct.pack("<IIQ", 9, 0, 400) + bytes(400) for n in range(20_000)
    )


def _long_strings() -> bytes:
    text = struct.pack("<I", 8) + _string(bytes(MIB))
    return _head(0, 60) + b"".join(_string(b"k%d" % n) + text for n in range(60))


def _peak_bytes(data: bytes) -> int:
    file = io.BytesIO(data)
    tracemalloc.start()
    try:
        with contextlib.suppress(ModelFileInvalid):
            parse_header(file, len(data), PATH)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("make", [_many_tensors, _many_keys, _long_strings])
def test_header_full_of_legal_entries_takes_little_memory(make: Callable[[], bytes]) -> None:
    assert _peak_bytes(make()) < 64 * MIB
