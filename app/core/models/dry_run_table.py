"""Reads the engine's log of a simulated load: the breakdown by device, and the caches' own lines.

Pure; fed line by line by `dry_run.py`. The lines are those of `common_memory_breakdown_print`
(common/fit.cpp), `llama_kv_cache`, `llama_memory_recurrent` and `sched_reserve` (llama-context.cpp).
"""

import re
from dataclasses import dataclass, field

MIB = 1 << 20
_ROW = re.compile(
    r"memory_breakdown_print: \|\s+- (?P<name>\S+).*\|[^|]*?"
    r"(?P<self>\d+) = +(?P<model>\d+) \+ +(?P<context>\d+) \+ +(?P<compute>\d+)"
)
_HEAD = re.compile(r"memory_breakdown_print: \| memory breakdown \[MiB\]")
_CACHE = re.compile(r"\b(?:llama_kv_cache|llama_memory_recurrent)\w*: size = +([\d.]+) MiB")
_COMPUTE = re.compile(r"sched_reserve: +(\S+) compute buffer size = +([\d.]+) MiB")
_OUTPUT = re.compile(r" output buffer size = +([\d.]+) MiB")
# While it measures, the engine turns its own errors into debug lines.
_COMPLAINT = re.compile(
    r"^(?:[\d.]+ (?:E|D) )?(?P<text>.*(?:error loading|failed|requires |not supported|unknown model).*)"
)
_DULL = re.compile(r"create_tensor|print_info|control token|llama_model_loader: -")
MAX_COMPLAINTS = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One memory of the table, whole MiB turned to bytes.

    Attributes:
        name: "Host", "CPU_REPACK", or a GPU's name.
        is_gpu: it has a total and free memory of its own.
    """

    name: str
    is_gpu: bool
    model_bytes: int
    context_bytes: int
    compute_bytes: int


@dataclass(slots=True)
class Breakdown:
    """What the log has said so far.

    Attributes:
        rows: of the first table; later ones are the engine's own attempts to shrink.
        caches_bytes: each KV cache and recurrent state, to a hundredth of a MiB.
        computes_bytes: compute buffers by the engine's name of the memory.
        complaints: the first lines that speak of a failure; the first is the cause.
    """

    rows: list[Row] = field(default_factory=list)
    caches_bytes: list[int] = field(default_factory=list)
    computes_bytes: dict[str, int] = field(default_factory=dict)
    output_bytes: int = 0
    complaints: list[str] = field(default_factory=list)
    _has_begun: bool = False

    def feed(self, line: str) -> bool:
        """Take in a line; True once the table is whole."""
        if "memory_breakdown_print" in line:
            if _HEAD.search(line):
                if self.rows:
                    return True
                self._has_begun = True
            elif self._has_begun:
                self._row(line)
            return False
        if self.rows:
            return True
        if found := _CACHE.search(line):
            self.caches_bytes.append(_mib(found[1]))
        elif found := _COMPUTE.search(line):
            # Printed again at each reservation: the last one holds.
            self.computes_bytes[found[1]] = _mib(found[2])
        elif found := _OUTPUT.search(line):
            self.output_bytes = _mib(found[1])
        elif (
            len(self.complaints) < MAX_COMPLAINTS
            and not _DULL.search(line)
            and (found := _COMPLAINT.match(line))
        ):
            self.complaints.append(" ".join(found["text"].split())[:300])
        return False

    def _row(self, line: str) -> None:
        found = _ROW.search(line)
        if found is None:
            return
        self.rows.append(
            Row(
                found["name"],
                "(" in line[found.start("name") + len(found["name"]) : found.start("self")],
                int(found["model"]) * MIB,
                int(found["context"]) * MIB,
                int(found["compute"]) * MIB,
            )
        )


def _mib(text: str) -> int:
    return int(float(text) * MIB)
