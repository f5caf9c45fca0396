"""Reads the header of a GGUF file: metadata and tensor table, never tensor data or vocabularies.

Called by `spec.py`, from any thread. Every count and length is checked against the file's size
before anything of that size is allocated, so that a hostile file costs a bounded sum.
Format: the GGUF specification in ggml's docs/gguf.md; the limits follow ggml's gguf.cpp.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from app.core.errors import ModelFileInvalid, ModelFileMissing
from app.core.models.ggml_types import GGML_TYPES, GgmlType
from app.core.models.gguf_cursor import Cursor

MAX_KEYS = 20_000
MAX_TENSORS = 100_000
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20
MAX_KEPT_STRING_BYTES = 1 << 20
MAX_KEPT_TOTAL_BYTES = 8 << 20
MAX_KEPT_ELEMENTS = 4096
MAX_FILES = 999
STRING, ARRAY, BOOL = 8, 9, 7
SPLIT_NAME = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class SkippedArray:
    """An array that was hopped over; only its length (elements) is known."""

    length: int


MetaValue = int | float | bool | str | tuple[int | float | bool, ...] | SkippedArray


@dataclass(frozen=True, slots=True)
class Tensor:
    """One row of the tensor table.

    Attributes:
        shape: ggml's order, the row length first.
        offset_bytes: of the data, from the start of the file.
        file: index into `GgufHeader.files`.
    """

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    size_bytes: int
    offset_bytes: int
    file: int = 0

    @property
    def elements(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a model's files say of themselves; the parts of a split model taken together.

    Attributes:
        metadata: of the first file; long arrays and strings are `SkippedArray`.
        alignment: of tensor data, in bytes.
        size_bytes: of all files.
    """

    version: int
    metadata: Mapping[str, MetaValue]
    tensors: tuple[Tensor, ...]
    files: tuple[Path, ...]
    alignment: int
    size_bytes: int

    def integer(self, key: str, default: int = 0) -> int:
        """The whole number at `key`; `default` where it is absent or of another kind."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) else default

    def text(self, key: str, default: str = "") -> str:
        """The text at `key`; `default` where it is absent or of another kind."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else default


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
        raise _invalid(path, 0, f"it claims to be split into {count} files")
    name = SPLIT_NAME.match(path.name)
    if name is None or int(name["count"]) != count:
        raise _invalid(path, 0, f"it is a part of {count}, but its name does not say which")
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
        raise _invalid(path, 0, f"it claims {len(tensors)} tensors")
    expected = parts[0].integer("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise _invalid(path, 0, f"its parts hold {len(tensors)} tensors of {expected}")
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise _invalid(path, 0, "two of its parts hold a tensor of the same name")
    return GgufHeader(
        parts[0].version,
        parts[0].metadata,
        tensors,
        tuple(part.files[0] for part in parts),
        parts[0].alignment,
        sum(part.size_bytes for part in parts),
    )


def _invalid(path: Path, offset: int, reason: str) -> ModelFileInvalid:
    return ModelFileInvalid(
        f"{path.name} is not a usable model file: {reason} (at byte {offset}).",
        path=str(path),
        offset=offset,
        reason=reason,
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
            return _Parser(path, Cursor(file, size_bytes)).header()
    except OSError as error:
        raise ModelFileMissing(f"{path} cannot be read: {error}.", path=str(path)) from error


class _Parser:
    """One pass over one file."""

    def __init__(self, path: Path, cursor: Cursor) -> None:
        self._path = path
        self._cursor = cursor
        self._kept_bytes = 0

    def header(self) -> GgufHeader:
        cursor = self._cursor
        try:
            return self._header()
        except EOFError as error:
            raise _invalid(self._path, cursor.position, str(error)) from None

    def _fail(self, reason: str) -> ModelFileInvalid:
        return _invalid(self._path, self._cursor.position, reason)

    def _header(self) -> GgufHeader:
        cursor = self._cursor
        magic = cursor.take(4)
        if magic != b"GGUF":
            if magic == b"version ":
                raise self._fail("it is a pointer to a file kept elsewhere (Git LFS)")
            raise self._fail("it does not begin with GGUF")
        version = cursor.unsigned(4)
        if version & 0xFFFF == 0:
            raise self._fail("it is written for big-endian machines")
        if version not in {2, 3}:
            raise self._fail(f"its GGUF version is {version}; 2 and 3 are understood")
        tensor_count = cursor.unsigned(8)
        key_count = cursor.unsigned(8)
        # The smallest tensor entry is 32 bytes, the smallest pair of key and value 13.
        if tensor_count > min(MAX_TENSORS, cursor.left // 32):
            raise self._fail(f"it claims {tensor_count} tensors")
        if key_count > min(MAX_KEYS, cursor.left // 13):
            raise self._fail(f"it claims {key_count} metadata keys")
        metadata: dict[str, MetaValue] = {}
        for _ in range(key_count):
            key = self._string("key", 65_535)
            if key in metadata:
                raise self._fail(f"the key {key[:80]!r} appears twice")
            metadata[key] = self._value(cursor.unsigned(4))
        alignment = metadata.get("general.alignment", 32)
        if (
            not isinstance(alignment, int)
            or not 0 < alignment <= MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise self._fail(f"its alignment is {alignment!r}")
        tensors = self._tensors(tensor_count, alignment)
        return GgufHeader(version, metadata, tensors, (self._path,), alignment, cursor.size_bytes)

    def _string(self, what: str, limit: int) -> str:
        length = self._cursor.unsigned(8)
        if length > limit:
            raise self._fail(f"a {what} of {length} bytes")
        self._kept_bytes += length
        if self._kept_bytes > MAX_KEPT_TOTAL_BYTES:
            raise self._fail("its metadata is too large")
        return self._cursor.take(length).decode("utf-8", errors="replace")

    def _value(self, kind: int) -> MetaValue:
        cursor = self._cursor
        if kind == ARRAY:
            return self._array(cursor.unsigned(4), cursor.unsigned(8))
        if kind == STRING:
            length = cursor.unsigned(8)
            if length > MAX_KEPT_STRING_BYTES:
                cursor.skip(length)
                return SkippedArray(length)
            self._kept_bytes += length
            if self._kept_bytes > MAX_KEPT_TOTAL_BYTES:
                raise self._fail("its metadata is too large")
            return cursor.take(length).decode("utf-8", errors="replace")
        if kind not in cursor.SCALARS:
            raise self._fail(f"a value of the unknown kind {kind}")
        return cursor.scalars(kind, 1)[0]

    def _array(self, kind: int, length: int) -> MetaValue:
        cursor = self._cursor
        if kind == STRING:
            cursor.skip_strings(length)
            return SkippedArray(length)
        if kind not in cursor.SCALARS:
            raise self._fail(f"an array of the unknown kind {kind}")
        width = cursor.SCALARS[kind].size
        if length > cursor.left // width:
            raise self._fail(f"an array of {length} elements")
        if length > MAX_KEPT_ELEMENTS:
            cursor.skip(length * width)
            return SkippedArray(length)
        # A Python number in a tuple weighs up to 40 bytes.
        self._kept_bytes += 40 * length
        if self._kept_bytes > MAX_KEPT_TOTAL_BYTES:
            raise self._fail("its metadata is too large")
        return cursor.scalars(kind, length)

    def _tensors(self, count: int, alignment: int) -> tuple[Tensor, ...]:
        cursor = self._cursor
        rows: list[tuple[str, tuple[int, ...], GgmlType, int, int]] = []
        names: set[str] = set()
        expected = 0
        for _ in range(count):
            name = self._string("tensor name", 255)
            if name in names:
                raise self._fail(f"the tensor {name!r} appears twice")
            names.add(name)
            dimensions = cursor.unsigned(4)
            if dimensions > MAX_DIMENSIONS:
                raise self._fail(f"the tensor {name!r} has {dimensions} dimensions")
            shape = tuple(cursor.unsigned(8) for _ in range(dimensions))
            number, offset = cursor.unsigned(4), cursor.unsigned(8)
            kind = GGML_TYPES.get(number)
            if kind is None:
                raise self._fail(f"the tensor {name!r} is of the unknown type {number}")
            row = shape[0] if shape else 1
            if row % kind.block_elements:
                raise self._fail(f"the tensor {name!r} has a row of {row}, not whole blocks")
            size = kind.row_bytes(row)
            for length in shape[1:]:
                size *= length
            # gguf.cpp takes tensors in the order of their data, without gaps or overlaps.
            if offset != expected:
                raise self._fail(f"the tensor {name!r} lies at {offset}, expected {expected}")
            if size > cursor.size_bytes:
                raise self._fail(f"the tensor {name!r} is larger than the file")
            expected = _aligned(offset + size, alignment)
            rows.append((name, shape, kind, size, offset))
        start = _aligned(cursor.position, alignment)
        if rows and start + rows[-1][4] + rows[-1][3] > cursor.size_bytes:
            missing = start + rows[-1][4] + rows[-1][3] - cursor.size_bytes
            raise self._fail(f"{missing} bytes are missing at its end; was a download stopped?")
        return tuple(
            Tensor(name, shape, kind, size, start + offset)
            for name, shape, kind, size, offset in rows
        )


def _aligned(value: int, alignment: int) -> int:
    return (value + alignment - 1) // alignment * alignment
