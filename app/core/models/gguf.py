"""Reads the header of a GGUF model: metadata and tensor table, never tensor data or vocabularies.

Called by `spec.py`, from any thread; puts the parts of a split model together, and keeps what it
has read by path, size and time of change.
"""

import re
from functools import lru_cache
from pathlib import Path

from app.core.errors import ModelFileMissing
from app.core.models.gguf_parser import (
    MAX_TENSORS,
    GgufHeader,
    MetaValue,
    SkippedArray,
    Tensor,
    invalid_file,
    parse_header,
)

MAX_FILES = 999
SPLIT_NAME = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


def read_header(path: Path) -> GgufHeader:
    """Read a model's header; for a split model, of all its parts.

    Cached by path, size and time of change. Blocking: some milliseconds, 0.1 s for a vocabulary
    of half a million.

    Raises:
        ModelFileMissing: there is no such file, or a part of the model is missing.
        ModelFileInvalid: it is no GGUF file, or damaged; with offset and reason.
    """
    header = _read_cached(path)
    count = header.integer("split.count")
    if count <= 1:
        return header
    if count > MAX_FILES:
        raise invalid_file(path, 0, f"it claims to be split into {count} files")
    name = SPLIT_NAME.match(path.name)
    if name is None or int(name["count"]) != count:
        raise invalid_file(path, 0, f"it is a part of {count}, but its name does not say which")
    parts = [
        _read_cached(path.with_name(f"{name['stem']}-{number:05d}-of-{count:05d}.gguf"))
        for number in range(1, count + 1)
    ]
    tensors = tuple(
        Tensor(t.name, t.shape, t.type, t.size_bytes, t.offset_bytes, number)
        for number, part in enumerate(parts)
        for t in part.tensors
    )
    if len(tensors) > MAX_TENSORS:
        raise invalid_file(path, 0, f"it claims {len(tensors)} tensors")
    expected = parts[0].integer("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise invalid_file(path, 0, f"its parts hold {len(tensors)} tensors of {expected}")
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise invalid_file(path, 0, "two of its parts hold a tensor of the same name")
    return GgufHeader(
        parts[0].version,
        parts[0].metadata,
        tensors,
        tuple(part.files[0] for part in parts),
        parts[0].alignment,
        sum(part.size_bytes for part in parts),
    )


def _read_cached(path: Path) -> GgufHeader:
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise ModelFileMissing(
            f"{path} cannot be read: {error}. Was it moved, or its download stopped?",
            path=str(path),
        ) from error
    return _read(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _read(path: Path, size_bytes: int, _changed_ns: int) -> GgufHeader:
    try:
        with path.open("rb") as file:
            return parse_header(file, size_bytes, path)
    except OSError as error:
        raise ModelFileMissing(f"{path} cannot be read: {error}.", path=str(path)) from error


__all__ = ["GgufHeader", "MetaValue", "SkippedArray", "Tensor", "parse_header", "read_header"]
