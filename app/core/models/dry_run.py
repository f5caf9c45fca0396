"""What the engine itself says a load would take: its simulation, in a throw-away process.

Called before each load by the planner, and by `coolhead plan --exact`; blocking, 0.1 s for most
models, a second or two where a large vocabulary is parsed. Answers are kept for the same files,
settings and engine.
"""

import functools
import importlib.metadata
import json
import os
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import app
from app.core.errors import ModelFileMissing, WorkerStartFailed
from app.core.models.dry_run_table import Breakdown
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import RAM, DevicePlan, MemoryPlan, plan_memory
from app.core.models.spec import ModelSpec

DEADLINE_S = 30.0
DRY_RUN_MARGIN_PERCENT = 2.0
MAX_LINE_BYTES = 1 << 16
MAX_LOG_BYTES = 256 << 20
"""A log that is longer is no longer one of a simulation."""

KEPT_ANSWERS = 128
_kept: OrderedDict[tuple[object, ...], MemoryPlan] = OrderedDict()
_kept_lock = threading.Lock()


def dry_run(
    spec: ModelSpec,
    settings: LoadSettings,
    gpus: Sequence[str] = (),
    *,
    python_folders: Sequence[str] = (),
    deadline_s: float = DEADLINE_S,
) -> MemoryPlan:
    """Let the engine price a load.

    The model's weights, caches and buffers are the engine's figures; the process itself, prompt
    cache, checkpoints, vision encoder, draft model and adapters are the formula's.

    Args:
        spec: a GGUF model.
        settings: how it would be loaded.
        gpus: the engine's names of the GPUs to use, in order.
        python_folders: where the engine's package lies, if not in this environment.
        deadline_s: the process is killed after so long.

    Raises:
        WorkerStartFailed: the simulation failed, or took too long; the formula must do.
        ModelFileMissing: a file is gone.

    Thread: any.
    """
    key = (_files(spec), settings, tuple(gpus), engine_version(tuple(python_folders)))
    with _kept_lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    formula = plan_memory(spec, settings, gpus)
    alone = replace(settings, draft="", mmproj="", adapters=())
    plain = plan_memory(spec, alone, gpus) if alone != settings else formula
    breakdown = _simulate(spec, settings, python_folders, deadline_s)
    _check_devices(breakdown, spec, formula)
    plan = _plan(breakdown, settings, formula, plain)
    with _kept_lock:
        _kept[key] = plan
        while len(_kept) > KEPT_ANSWERS:
            _kept.popitem(last=False)
    return plan


def dry_run_or_formula(
    spec: ModelSpec,
    settings: LoadSettings,
    gpus: Sequence[str] = (),
    *,
    python_folders: Sequence[str] = (),
) -> MemoryPlan:
    """The engine's figures; where they cannot be had, the formula's, with a note that says so.

    The arguments are those of `dry_run`.

    Raises:
        ModelError: a file is gone or damaged.
    """
    try:
        return dry_run(spec, settings, gpus, python_folders=python_folders)
    except WorkerStartFailed as error:
        plan = plan_memory(spec, settings, gpus)
        note = (
            f"The engine could not be asked, so the formula decides; it may be off by "
            f"{plan.margin_percent:.0f} %. {error.message}"
        )
        return replace(plan, note=" ".join(part for part in (plan.note, note) if part))


@functools.lru_cache(maxsize=16)
def engine_version(python_folders: tuple[str, ...] = ()) -> str:
    """The engine's version, without importing it; empty where it is not installed."""
    path = [*python_folders, *sys.path]
    for found in importlib.metadata.distributions(name="xllamacpp", path=path):
        return found.version
    return ""


def _files(spec: ModelSpec) -> tuple[tuple[str, int, int], ...]:
    try:
        stats = [(path, path.stat()) for path in spec.files]
    except OSError as error:
        raise ModelFileMissing(f"{error.filename} cannot be read: {error.strerror}.") from error
    return tuple((str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats)


def _argv() -> list[str]:
    if getattr(sys, "frozen", False):
        return [sys.executable, "dry-run"]
    return [sys.executable, "-P", "-m", "app.core.models.dry_run_program"]


def _simulate(
    spec: ModelSpec, settings: LoadSettings, python_folders: Sequence[str], deadline_s: float
) -> Breakdown:
    package_parent = str(Path(app.__file__).resolve().parent.parent)
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join([*python_folders, package_parent])
    env["GGML_NO_BACKTRACE"] = "1"  # on the abort that ends it, it would start a debugger
    job = asdict(settings) | {"path": str(spec.path)}
    breakdown = Breakdown()
    try:
        process = subprocess.Popen(
            _argv(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
    except OSError as error:
        raise WorkerStartFailed(f"The dry run could not be started: {error.strerror}.") from error
    timer = threading.Timer(deadline_s, process.kill)
    timer.daemon = True
    timer.start()
    try:
        is_whole = _read(process, json.dumps(job).encode(), breakdown)
    finally:
        in_time = timer.is_alive()
        timer.cancel()
        process.kill()
        for pipe in (process.stdin, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()
        timer.join()
    if not is_whole:
        raise WorkerStartFailed(_reason(spec, breakdown, in_time, deadline_s), model=spec.model_id)
    return breakdown


def _read(process: subprocess.Popen[bytes], job: bytes, breakdown: Breakdown) -> bool:
    """Feed the log to the breakdown until its table is whole."""
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        process.stdin.write(job)
        process.stdin.close()
    except BrokenPipeError:
        process.stdin = None
    read = 0
    while read < MAX_LOG_BYTES:
        line = process.stderr.readline(MAX_LINE_BYTES)
        if not line:
            break
        read += len(line)
        if breakdown.feed(line.decode("utf-8", errors="replace")):
            return True
    return bool(breakdown.rows)


def _reason(spec: ModelSpec, breakdown: Breakdown, in_time: bool, deadline_s: float) -> str:
    if not in_time:
        return f"The dry run of {spec.model_id} took longer than {deadline_s:.0f} s."
    said = breakdown.complaints[0] if breakdown.complaints else "it printed no sums"
    return f"The dry run of {spec.model_id} failed: {said}"


def _check_devices(breakdown: Breakdown, spec: ModelSpec, formula: MemoryPlan) -> None:
    """Refuse an answer that is not of the GPUs asked for.

    An engine that does not know them leaves their layers out of its sums without a word.
    """
    known = {row.name for row in breakdown.rows}
    asked = [part.device for part in formula.devices if part.device != RAM and part.weights_bytes]
    absent = [name for name in asked if name not in known]
    if absent:
        raise WorkerStartFailed(
            f"The dry run of {spec.model_id} does not count: this engine has no "
            f"{' and no '.join(absent)}.",
            model=spec.model_id,
        )


def _plan(
    breakdown: Breakdown, settings: LoadSettings, formula: MemoryPlan, plain: MemoryPlan
) -> MemoryPlan:
    """The engine's figures in our columns; `formula` minus `plain` is what companions add."""
    weights: dict[str, int] = {}
    kv: dict[str, int] = {}
    compute: dict[str, int] = {}
    mapped = 0
    for row in breakdown.rows:
        device = row.name if row.is_gpu else RAM
        weights[device] = weights.get(device, 0) + row.model_bytes
        kv[device] = kv.get(device, 0) + row.context_bytes
        compute[device] = compute.get(device, 0) + row.compute_bytes
        if row.name == "Host" and settings.mmap:
            mapped = row.model_bytes
    # The caches' own lines are finer than the table, but do not say on which device.
    if sum(size > 0 for size in kv.values()) == 1 and breakdown.caches_bytes:
        holder = next(device for device, size in kv.items() if size > 0)
        kv[holder] = sum(breakdown.caches_bytes)
    if set(kv) == {RAM} and breakdown.computes_bytes:
        compute[RAM] = sum(breakdown.computes_bytes.values())
    names = [part.device for part in formula.devices]
    names += [device for device in weights if device not in names]
    devices = []
    for name in names:
        whole, own = formula.device(name), plain.device(name)
        devices.append(
            DevicePlan(
                name,
                weights.get(name, 0) + whole.weights_bytes - own.weights_bytes,
                kv.get(name, 0) + whole.kv_bytes - own.kv_bytes,
                compute.get(name, 0) + whole.compute_bytes - own.compute_bytes,
                (breakdown.output_bytes if name == RAM else 0)
                + whole.output_bytes
                - own.output_bytes,
                whole.cache_bytes,
                whole.overhead_bytes,
            )
        )
    mapped += formula.mapped_bytes - plain.mapped_bytes
    note = ""
    if sum(part.total_bytes for part in formula.devices) != sum(
        part.total_bytes for part in plain.devices
    ):
        note = "Vision encoder, draft model and adapters are priced by formula."
    return MemoryPlan(
        tuple(devices),
        devices[0].total_bytes - mapped,
        mapped,
        "dry_run",
        DRY_RUN_MARGIN_PERCENT,
        note,
    )
