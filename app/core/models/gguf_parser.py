"""What a GGUF file says of itself, and the one pass over a file that finds it out.

Called by `gguf.py`, from any thread. Every count and length is checked against the file's size
before anything of that size is allocated, so that a hostile file costs a bounded sum.
Format: the GGUF specification in ggml's docs/gguf.md; the limits follow ggml's gguf.cpp.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from app.core.errors import ModelFileInvalid
from app.core.models.ggml_types import GGML_TYPES, GgmlType
from app.core.models.gguf_cursor import Cursor

MAX_KEYS = 20_000
MAX_TENSORS = 65_536
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20
MAX_KEPT_STRING_BYTES = 1 << 20
MAX_KEPT_TOTAL_BYTES = 8 << 20
MAX_KEPT_ELEMENTS = 4096
STRING, ARRAY = 8, 9


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
        offset_bytes: of the data, from the start of its file's tensor data.
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
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def text(self, key: str, default: str = "") -> str:
        """The text at `key`; `default` where it is absent or of another kind."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else default


def invalid_file(path: Path, offset: int, reason: str) -> ModelFileInvalid:
    return ModelFileInvalid(
        f"{path.name} is not a usable model file: {reason} (at byte {offset}).",
        path=str(path),
        offset=offset,
        reason=reason,
    )


def parse_header(file: BinaryIO, size_bytes: int, path: Path) -> GgufHeader:
    """Read the header of one file, not cached; `path` is for words only.

    Raises:
        ModelFileInvalid: it is no GGUF file, or damaged; with offset and reason.
    """
    cursor = Cursor(file, size_bytes)
    try:
        return _Parser(path, cursor).header()
    except EOFError as error:
        raise invalid_file(path, cursor.position, str(error)) from None


class _Parser:
    """One pass over one file."""

    def __init__(self, path: Path, cursor: Cursor) -> None:
        self._path = path
        self._cursor = cursor
        self._kept_bytes = 0

    def header(self) -> GgufHeader:
        cursor = self._cursor
        magic = cursor.take(4)
        if magic != b"GGUF":
            if magic == b"vers":
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
            or isinstance(alignment, bool)
            or not 0 < alignment <= MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise self._fail(f"its alignment is {alignment!r}")
        tensors = self._tensors(tensor_count, alignment)
        return GgufHeader(version, metadata, tensors, (self._path,), alignment, cursor.size_bytes)

    def _fail(self, reason: str) -> ModelFileInvalid:
        return invalid_file(self._path, self._cursor.position, reason)

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
        tensors: list[Tensor] = []
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
            tensors.append(Tensor(name, shape, kind, size, offset))
        if tensors:
            start = _aligned(cursor.position, alignment)
            missing = start + tensors[-1].offset_bytes + tensors[-1].size_bytes - cursor.size_bytes
            if missing > 0:
                raise self._fail(f"{missing} bytes are missing at its end; was it fully fetched?")
        return tuple(tensors)


def _aligned(value: int, alignment: int) -> int:
    return (value + alignment - 1) // alignment * alignment
