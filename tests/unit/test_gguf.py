"""The header reader on files that are well, split, or plainly wrong."""

import struct
import time
from pathlib import Path

import pytest

from app.core.errors import ModelFileInvalid, ModelFileMissing
from app.core.models.gguf import SkippedArray, read_header
from app.core.models.spec import read_spec
from tests.fakes import gguf_models


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _file(
    path: Path,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    tensors: tuple[bytes, ...] = (),
    pairs: tuple[bytes, ...] = (),
    tensor_count: int | None = None,
    key_count: int | None = None,
    tail: int = 0,
) -> Path:
    count = len(tensors) if tensor_count is None else tensor_count
    keys = len(pairs) if key_count is None else key_count
    head = magic + struct.pack("<IQQ", version, count, keys)
    path.write_bytes(head + b"".join(pairs) + b"".join(tensors) + bytes(tail))
    return path


def _number(key: bytes, value: int) -> bytes:
    return _string(key) + struct.pack("<II", 4, value)


def _tensor(name: bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<{len(shape)}Q", *shape)
    return _string(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, offset)


def test_header_of_a_model_has_its_metadata_and_every_tensor(tmp_path: Path) -> None:
    model = gguf_models.gpt_oss_20b()
    header = read_header(gguf_models.write_model(model, tmp_path / "m.gguf"))
    assert header.text("general.architecture") == "gpt-oss"
    assert header.integer("gpt-oss.attention.sliding_window") == 128
    assert [(t.name, t.shape, t.type.name) for t in header.tensors] == model.tensors
    assert sum(tensor.size_bytes for tensor in header.tensors) == model.size_bytes
    offset = 0
    for tensor in header.tensors:
        assert tensor.offset_bytes == offset
        offset = (offset + tensor.size_bytes + 31) // 32 * 32


def test_spec_of_a_model_names_what_people_ask_for(tmp_path: Path) -> None:
    path = gguf_models.write_model(
        gguf_models.llama_8b(),
        tmp_path / "m.gguf",
        {"general.file_type": 15, "tokenizer.chat_template": "{{ messages }}"},
    )
    spec = read_spec(path, "eight")
    assert (spec.model_id, spec.architecture, spec.quantization) == ("eight", "llama", "Q4_K_M")
    assert (spec.layers, spec.trained_context_tokens) == (32, 131072)
    assert spec.has_chat_template
    assert 8.0e9 < spec.parameters < 8.1e9
    assert spec.size_bytes == path.stat().st_size


def test_header_of_the_real_model_is_read(smollm2: Path) -> None:
    header = read_header(smollm2)
    assert header.integer("llama.block_count") == 30
    assert header.metadata["tokenizer.ggml.tokens"] == SkippedArray(49152)
    assert len(header.tensors) == 272


def test_split_model_is_read_as_one(tmp_path: Path) -> None:
    whole = gguf_models.llama_1b()
    parts = []
    for number in range(2):
        part = gguf_models.FakeModel("llama", dict(whole.keys))
        part.tensors = whole.tensors[number::2]
        keys = {"split.count": 2, "split.no": number, "split.tensors.count": len(whole.tensors)}
        name = f"m-0000{number + 1}-of-00002.gguf"
        parts.append(gguf_models.write_model(part, tmp_path / name, keys))
    header = read_header(parts[1])
    assert header.files == tuple(parts)
    assert {t.name for t in header.tensors} == {name for name, _shape, _kind in whole.tensors}
    assert header.size_bytes == sum(part.stat().st_size for part in parts)
    assert read_spec(parts[1]).path == parts[0]
    parts[0].unlink()
    with pytest.raises(ModelFileMissing):
        read_header(parts[1])


def test_split_model_short_of_tensors_is_refused(tmp_path: Path) -> None:
    keys = {"split.count": 2, "split.no": 0, "split.tensors.count": 999}
    for number in (1, 2):
        part = gguf_models.FakeModel("llama", {"block_count": 1})
        part.add(f"part{number}.weight", 256, 256)
        gguf_models.write_model(part, tmp_path / f"m-0000{number}-of-00002.gguf", keys)
    with pytest.raises(ModelFileInvalid, match="2 tensors of 999"):
        read_header(tmp_path / "m-00001-of-00002.gguf")


def test_header_is_kept_until_the_file_changes(tmp_path: Path) -> None:
    path = gguf_models.write_model(gguf_models.llama_1b(), tmp_path / "m.gguf")
    first = read_header(path)
    assert read_header(path) is first
    gguf_models.write_model(gguf_models.qwen2_7b(), path)
    assert read_header(path).text("general.architecture") == "qwen2"


def test_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelFileMissing):
        read_header(tmp_path / "none.gguf")


HUGE = 1 << 62
BROKEN = {
    "does not begin": {"magic": b"GGML"},
    "Git LFS": {"magic": b"version https://git-lfs"},
    "big-endian": {"version": 3 << 24},
    "version is 1;": {"version": 1},
    "claims 4611686018427387904 tensors": {"tensor_count": HUGE},
    "claims 4611686018427387904 metadata": {"key_count": HUGE},
    "appears twice": {"pairs": (_number(b"a", 1), _number(b"a", 2))},
    "a key of": {"pairs": (struct.pack("<Q", HUGE) + bytes(32),)},
    "unknown kind 99": {"pairs": (_string(b"a") + struct.pack("<IQ", 99, 0),)},
    "array of the unknown kind 9": {"pairs": (_string(b"a") + struct.pack("<IIQ", 9, 9, 1),)},
    "strings leads past": {"pairs": (_string(b"a") + struct.pack("<IIQ", 9, 8, HUGE),)},
    "a string leads past": {
        "pairs": (_string(b"a") + struct.pack("<IIQQ", 9, 8, 1, HUGE),),
        "tail": 64,
    },
    "array of 4611686018427387904": {"pairs": (_string(b"a") + struct.pack("<IIQ", 9, 4, HUGE),)},
    "length of 4611686018427387904": {"pairs": (_string(b"a") + struct.pack("<IQ", 8, HUGE),)},
    "alignment is 48": {"pairs": (_number(b"general.alignment", 48),)},
    "alignment is 0": {"pairs": (_number(b"general.alignment", 0),)},
    "alignment is 2147483648": {"pairs": (_number(b"general.alignment", 1 << 31),)},
    "has 5 dimensions": {"tensors": (_tensor(b"t", (1, 1, 1, 1, 1)),)},
    "unknown type 77": {"tensors": (_tensor(b"t", (32,), 77),), "tail": 999},
    "not whole blocks": {"tensors": (_tensor(b"t", (33,), 2),), "tail": 999},
    "expected 0": {"tensors": (_tensor(b"t", (32,), 0, 64),), "tail": 999},
    "larger than the file": {"tensors": (_tensor(b"t", (1 << 60, 1 << 60)),), "tail": 999},
    "bytes are missing": {"tensors": (_tensor(b"t", (32,)),), "tail": 100},
}


@pytest.mark.parametrize("reason", BROKEN)
def test_broken_file_is_refused_with_reason_and_offset(tmp_path: Path, reason: str) -> None:
    path = _file(tmp_path / "m.gguf", **BROKEN[reason])  # type: ignore[arg-type]  # a table of cases
    with pytest.raises(ModelFileInvalid, match=reason) as caught:
        read_header(path)
    assert caught.value.details["path"] == str(path)
    assert isinstance(caught.value.details["offset"], int)
    assert caught.value.details["reason"]


def test_tensor_twice_is_refused(tmp_path: Path) -> None:
    tensors = (_tensor(b"t", (32,)), _tensor(b"t", (32,), 0, 128))
    with pytest.raises(ModelFileInvalid, match="twice"):
        read_header(_file(tmp_path / "m.gguf", tensors=tensors, tail=999))


@pytest.mark.parametrize(("strings", "limit_s"), [(262_000, 0.1), (650_000, 0.2)])
def test_vocabulary_is_hopped_over_in_time(tmp_path: Path, strings: int, limit_s: float) -> None:
    vocabulary = b"".join(_string(b"token%d" % number) for number in range(strings))
    pair = _string(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, strings) + vocabulary
    model = gguf_models.qwen3_32b()
    model.tensors = model.tensors[: 3 + 40 * 11]
    tensors, offset = [], 0
    for name, shape, _kind in model.tensors:
        tensors.append(_tensor(name.encode(), shape, 0, offset))
        size = 4
        for length in shape:
            size *= length
        offset += size
    path = _file(tmp_path / "m.gguf", pairs=(pair,), tensors=tuple(tensors))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + offset + 64)
    best = float("inf")
    for attempt in range(5):
        copy = path.rename(tmp_path / f"m{attempt}.gguf")
        path = copy
        begin = time.process_time()
        header = read_header(copy)
        best = min(best, time.process_time() - begin)
    assert header.metadata["tokenizer.ggml.tokens"] == SkippedArray(strings)
    assert len(header.tensors) == len(model.tensors)
    assert best < limit_s
