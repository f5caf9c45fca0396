"""One identity for a Responses stream that we have opened before its worker did. Pure.

Clients' helpers check that every lifecycle event names the same response. Where keep-alives of ours went
out first, the worker's id is replaced by the one they carried; otherwise nothing is touched.
"""

import re
import uuid

_ID = re.compile(rb'"response"\s*:\s*\{\s*"id"\s*:\s*"([^"\\]+)"')


def new_response_id() -> str:
    return f"resp_{uuid.uuid4().hex}"


class KeptId:
    """Replaces the worker's response id in a stream of events, whatever pieces it comes in."""

    def __init__(self, own_id: str) -> None:
        self._own = b'"%b"' % own_id.encode()
        self._theirs = b""
        self._tail = b""

    def __call__(self, piece: bytes) -> bytes:
        """The piece as it may go out; b"" asks for what is left."""
        if not piece:
            tail, self._tail = self._tail, b""
            return tail
        data = self._tail + piece
        cut = data.rfind(b"\n\n") + 2
        if cut < 2:
            cut = data.rfind(b"\r\n\r\n") + 4
            if cut < 4:
                self._tail = data
                return b""
        events, self._tail = data[:cut], data[cut:]
        if not self._theirs:
            found = _ID.search(events)
            if found is None:
                return events
            self._theirs = b'"%b"' % found[1]
        return events.replace(self._theirs, self._own)
