"""A bounded reader over a file: takes, skips, and hops over strings without decoding them.

Used by `gguf.py` alone. Raises EOFError with the reason whenever a length leads past the file.
"""

import struct
from typing import BinaryIO, ClassVar

CHUNK_BYTES = 1 << 20


class Cursor:
    """Reads forward through one chunk at a time; memory use is that of one chunk.

    Attributes:
        size_bytes: of the file, as it was when it was opened.
    """

    # The scalar kinds of the format, by number (ggml's `gguf_type`).
    SCALARS: ClassVar[dict[int, struct.Struct]] = {
        0: struct.Struct("<B"),
        1: struct.Struct("<b"),
        2: struct.Struct("<H"),
        3: struct.Struct("<h"),
        4: struct.Struct("<I"),
        5: struct.Struct("<i"),
        6: struct.Struct("<f"),
        7: struct.Struct("<?"),
        10: struct.Struct("<Q"),
        11: struct.Struct("<q"),
        12: struct.Struct("<d"),
    }

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        self.size_bytes = size_bytes
        self._chunk = b""
        self._start = 0  # where the chunk lies in the file
        self._at = 0  # the next byte in the chunk

    @property
    def position(self) -> int:
        """The next byte, from the start of the file."""
        return self._start + self._at

    @property
    def left(self) -> int:
        return self.size_bytes - self.position

    def take(self, length: int) -> bytes:
        """The next `length` bytes; the caller has bounded `length`."""
        end = self._at + length
        if end > len(self._chunk):
            self._fill(length)
            end = length
        taken = self._chunk[self._at : end]
        self._at = end
        return taken

    def skip(self, length: int) -> None:
        if length > self.left:
            raise EOFError(f"a length of {length} leads past the end")
        position = self.position + length
        if position <= self._start + len(self._chunk):
            self._at = position - self._start
        else:
            self._move(position)

    def unsigned(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def scalars(self, kind: int, count: int) -> tuple[int | float | bool, ...]:
        """`count` numbers of one kind; the caller has bounded `count`."""
        shape = self.SCALARS[kind]
        return struct.unpack(f"<{count}{shape.format[1:]}", self.take(shape.size * count))

    def skip_strings(self, count: int) -> None:
        """Hop over `count` strings, reading lengths only: 0.1 us each."""
        if count > self.left // 8:
            raise EOFError(f"an array of {count} strings leads past the end")
        length_of = struct.Struct("<Q").unpack_from
        while count:
            if len(self._chunk) - self._at < 8:
                self._fill(8)
            chunk, at, last = self._chunk, self._at, len(self._chunk) - 8
            done = 0
            for done in range(1, count + 1):  # noqa: B007 - the count is what is wanted
                at += 8 + length_of(chunk, at)[0]
                if at > last:
                    break
            count -= done
            position = self._start + at
            if position > self.size_bytes:
                raise EOFError("a string leads past the end")
            if at <= len(chunk):
                self._at = at
            else:
                self._move(position)

    def _move(self, position: int) -> None:
        self._chunk = b""
        self._start, self._at = position, 0
        self._file.seek(position)

    def _fill(self, length: int) -> None:
        """Have at least `length` bytes in the chunk, beginning with the next one."""
        if length > self.left:
            raise EOFError(f"{length} bytes are wanted where {max(0, self.left)} are left")
        position = self.position
        self._file.seek(position)
        self._chunk = self._file.read(max(CHUNK_BYTES, length))
        self._start, self._at = position, 0
        if len(self._chunk) < length:
            raise EOFError("the file ends before its size says")
