"""What a process has of RAM right now, read once after a load. The guard's samples do it later.

Called by the supervisor, on the core loop: one small read of a kernel file.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes that the process owns (anonymous, shared, swapped) and maps from files."""

    own_bytes: int
    mapped_bytes: int


def taken_by(pid: int) -> Taken | None:
    """None where the system has no such file, or the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    kib = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            kib[name] = int(value.split()[0])
    own = kib.get("RssAnon", 0) + kib.get("RssShmem", 0) + kib.get("VmSwap", 0)
    return Taken(own * 1024, kib.get("RssFile", 0) * 1024)
