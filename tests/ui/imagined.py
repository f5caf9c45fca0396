"""A machine and a model that are not there, for the memory page."""

import dataclasses
from pathlib import Path

from app.core.handle import ModelSummary, Snapshot, WorkerSnapshot
from app.core.hardware.machine import Machine, imagined_machine
from app.core.lifecycle import AppState, CapKind, WorkerState
from app.core.models.spec import read_spec
from tests.fakes.gguf_models import qwen2_7b, write_model

GIB = 1024**3
MIB = 1024**2
MODEL_ID = "qwen2.5-7b-instruct-q4_k_m"


def machine(ram_gib: int = 16, gpu_gib: int = 0) -> Machine:
    found = imagined_machine(ram_gib * GIB, [gpu_gib * GIB] if gpu_gib else [])
    gpus = tuple(dataclasses.replace(gpu, name="GeForce RTX 3060") for gpu in found.gpus)
    return dataclasses.replace(found, gpus=gpus)


def model(folder: Path) -> ModelSummary:
    """A header-only file of a 7B model; it takes some kilobytes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{MODEL_ID}.gguf"
    if not path.exists():
        write_model(qwen2_7b(), path)
    spec = read_spec(path, MODEL_ID)
    return ModelSummary(
        MODEL_ID, str(path), spec.size_bytes, spec.trained_context_tokens, is_loaded=False
    )


def snapshot(folder: Path) -> Snapshot:
    return Snapshot(
        state=AppState.READY,
        endpoint="http://127.0.0.1:8555/v1",
        ram_total_bytes=16 * GIB,
        ram_available_bytes=11 * GIB,
        models=(model(folder),),
    )


def worker() -> WorkerSnapshot:
    return WorkerSnapshot(
        MODEL_ID,
        WorkerState.READY,
        pid=4242,
        engine="xllamacpp",
        context_tokens=8192,
        slots=2,
        in_flight=1,
        tokens_per_s=6.4,
        planned_bytes={"RAM": 5 * GIB + 600 * MIB},
        taken_bytes={"RAM": 5 * GIB + 420 * MIB},
        own_bytes=1200 * MIB,
        cap_bytes=1800 * MIB,
        cap_kind=CapKind.CGROUP_V2,
    )
