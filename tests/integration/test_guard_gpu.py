"""GPU memory through the real guard and its reader, with a stand-in for NVIDIA's library."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.core.lifecycle import ExitCause
from app.guard.lines import GIB, MIB
from app.guard.protocol import WorkerSample
from tests.fakes.guard_bench import GuardBench, is_alive, with_guard

SOURCE = Path(__file__).resolve().parents[1] / "fakes" / "nvml_stand_in.c"


@pytest.fixture
def usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that says what processes take: "CARD PID BYTES" a line, or "hang"."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(SOURCE)],
        check=True,
        timeout=60,
    )
    told = tmp_path / "usage"
    told.write_text("")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("FAKE_NVML", str(told))
    return told


def say(usage: Path, *lines: str) -> None:
    """In one rename: the reader must not see half of it."""
    scratch = usage.with_suffix(".new")
    scratch.write_text("".join(f"{line}\n" for line in lines))
    scratch.rename(usage)


def last_sample(bench: GuardBench, name: str) -> WorkerSample | None:
    found = [one for said in bench.samples() for one in said.workers if one.worker_id == name]
    return found[-1] if found else None


def gpu_of(bench: GuardBench, name: str) -> dict[str, int]:
    sample = last_sample(bench, name)
    return dict(sample.gpu_bytes) if sample else {}


def test_guard_worker_over_its_gpu_cap_is_stopped_and_its_neighbour_is_not(usage: Path) -> None:
    async def test(bench: GuardBench) -> None:
        caps = {"CUDA1": 2 * GIB}
        greedy = await bench.hog("--mib", "8", "--hold", "60", name="greedy", gpu_bytes=caps)
        modest = await bench.hog("--mib", "8", "--hold", "60", name="modest", gpu_bytes=caps)
        pids = greedy.message.pid, modest.message.pid
        # On the other card it has no cap, however much that is.
        say(usage, f"0 {pids[0]} {9 * GIB}", f"1 {pids[0]} {GIB}", f"1 {pids[1]} {GIB}")
        await bench.until(lambda: gpu_of(bench, "greedy") == {"CUDA0": 9 * GIB, "CUDA1": GIB})
        await bench.until(lambda: gpu_of(bench, "modest") == {"CUDA1": GIB})
        assert bench.verdicts() == []
        say(usage, f"1 {pids[0]} {2 * GIB + 64 * MIB}", f"1 {pids[1]} {GIB}")
        exited = await bench.exited("greedy")
        assert exited.cause is ExitCause.GPU_MEMORY
        assert exited.evidence.line_bytes == 2 * GIB
        assert "CUDA1" in exited.sentence
        assert exited.samples[-1].gpu_bytes["CUDA1"] == 2 * GIB + 64 * MIB
        steps = [one.step for one in bench.verdicts() if one.worker_id == "greedy"]
        assert steps.index("cancel_newest") < steps.index("killed")
        assert is_alive(pids[1])
        assert all(one.worker_id != "modest" for one in bench.verdicts())

    with_guard(test)


def test_guard_gpu_figures_of_a_hanging_driver_are_not_decided_by(usage: Path) -> None:
    async def test(bench: GuardBench) -> None:
        worker = await bench.hog("--mib", "8", "--hold", "60", gpu_bytes={"CUDA0": 2 * GIB})
        pid = worker.message.pid
        say(usage, f"0 {pid} {GIB}")
        await bench.until(lambda: gpu_of(bench, "w") == {"CUDA0": GIB})
        say(usage, "hang")
        await bench.until(lambda: gpu_of(bench, "w") == {})
        assert is_alive(pid)
        assert bench.verdicts() == []
        # The guard's own watch goes on meanwhile, and the driver's answer counts once it comes.
        seen = len(bench.samples())
        await bench.until(lambda: len(bench.samples()) > seen)
        say(usage, f"0 {pid} {3 * GIB}")
        assert (await bench.exited()).cause is ExitCause.GPU_MEMORY

    with_guard(test)


def test_guard_gpus_are_numbered_as_the_engine_sees_them(
    usage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")

    async def test(bench: GuardBench) -> None:
        worker = await bench.hog("--mib", "8", "--hold", "60", gpu_bytes={"CUDA0": 2 * GIB})
        say(usage, f"0 {worker.message.pid} {GIB}", f"1 {worker.message.pid} {3 * GIB}")
        exited = await asyncio.wait_for(bench.exited(), 20)
        assert exited.cause is ExitCause.GPU_MEMORY
        assert exited.samples[-1].gpu_bytes == {"CUDA0": 3 * GIB}

    with_guard(test)
