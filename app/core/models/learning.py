"""What loads really took, kept beside what was planned, and used to correct the next plan.

One record for each (model file, settings, backend), in the state folder. Called by the supervisor in an
executor; a lock makes it safe from any thread. A record that cannot be read is no reason not to load.
"""

import dataclasses
import hashlib
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from app.core.models.load_settings import LoadSettings
from app.core.models.plan import RAM, MemoryPlan
from app.core.models.sizes import size_text
from app.core.models.spec import ModelSpec
from app.core.paths import Paths
from app.core.settings_meta import MIB

_log = logging.getLogger(__name__)

DRIFT_SHARE = 0.05
DRIFT_BYTES = 32 * MIB
"""Planned and taken may differ by this before anyone is told: what the plan promises to hold."""

MAX_RECORDS = 500


class Record(msgspec.Struct, frozen=True):
    """Per device, in bytes: what was planned last, and the most that was ever taken."""

    model_id: str
    backend: str
    planned_bytes: dict[str, int]
    taken_bytes: dict[str, int]
    loads: int = 1
    at: float = 0.0
    """Wall time of the last load, in seconds since 1970."""


class Learning:
    """Thread: any."""

    def __init__(self, paths: Paths) -> None:
        self._path = paths.state / "learned.json"
        self._lock = threading.Lock()
        self._records: dict[str, Record] | None = None  # written under the lock only

    def record(
        self,
        spec: ModelSpec,
        settings: LoadSettings,
        backend: str,
        plan: MemoryPlan,
        taken_bytes: Mapping[str, int],
    ) -> str:
        """Stores what a load took; a sentence where it is far from the plan, else "".

        Args:
            spec: the model.
            settings: how it was loaded.
            backend: what loaded it, with its version: another one takes other sums.
            plan: what was planned, uncorrected.
            taken_bytes: per device ("RAM", "CUDA0").
        """
        key = _key(spec, settings, backend)
        planned = {part.device: part.total_bytes for part in plan.devices}
        with self._lock:
            records = self._load()
            before = records.get(key)
            most = dict(taken_bytes)
            if before is not None:
                for device, size in before.taken_bytes.items():
                    most[device] = max(size, most.get(device, 0))
            records[key] = Record(
                spec.model_id,
                backend,
                planned,
                most,
                (before.loads if before else 0) + 1,
                time.time(),
            )
            self._save(records)
        return drift_sentence(spec.model_id, planned, taken_bytes)

    def recorded(self, spec: ModelSpec, settings: LoadSettings, backend: str) -> Record | None:
        """What is known of this very load."""
        with self._lock:
            return self._load().get(_key(spec, settings, backend))

    def correct(
        self, plan: MemoryPlan, spec: ModelSpec, settings: LoadSettings, backend: str
    ) -> MemoryPlan:
        """The plan, raised to what such a load has taken before; never lowered below its sum.

        A load that took less may not have seen its longest prompt yet.
        """
        record = self.recorded(spec, settings, backend)
        if record is None:
            return plan
        own_more, devices = 0, []
        for part in plan.devices:
            more = max(0, record.taken_bytes.get(part.device, 0) - part.total_bytes)
            if part.device == RAM:
                own_more = more
            devices.append(dataclasses.replace(part, overhead_bytes=part.overhead_bytes + more))
        if all(new == old for new, old in zip(devices, plan.devices, strict=True)):
            return plan
        note = f"{plan.note} " if plan.note else ""
        return dataclasses.replace(
            plan,
            devices=tuple(devices),
            own_bytes=plan.own_bytes + own_more,
            note=f"{note}Raised to what this load took before.",
        )

    def _load(self) -> dict[str, Record]:
        if self._records is None:
            self._records = _read(self._path)
        return self._records

    def _save(self, records: dict[str, Record]) -> None:
        while len(records) > MAX_RECORDS:
            del records[min(records, key=lambda key: records[key].at)]
        scratch = self._path.with_suffix(f".{os.getpid()}.new")
        try:
            scratch.write_bytes(msgspec.json.encode(records))
            scratch.replace(self._path)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            _log.warning("what loads took cannot be kept in %s: %s", self._path, error)


def drift_sentence(model_id: str, planned: Mapping[str, int], taken: Mapping[str, int]) -> str:
    """Where taken and planned are further apart than the plan promises, in words; else ""."""
    told = []
    for device, size in taken.items():
        plan = planned.get(device, 0)
        off = size - plan
        if abs(off) > max(DRIFT_BYTES, plan * DRIFT_SHARE):
            told.append(f"{size_text(size)} instead of {size_text(plan)} on {device}")
    return f"{model_id} took {' and '.join(told)}." if told else ""


def _read(path: Path) -> dict[str, Record]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Record])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        _log.warning("%s cannot be read (%s); learning starts anew", path, error)
        return {}


def _key(spec: ModelSpec, settings: LoadSettings, backend: str) -> str:
    # Threads change the speed and not the memory, but for a stack or two.
    figures = dataclasses.replace(settings, threads=1)
    text = f"{spec.path.name}\n{spec.size_bytes}\n{figures!r}\n{backend}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
