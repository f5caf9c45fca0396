"""Slow readings: their pace, their process, and what they read."""

# ruff: noqa: N802 - the fakes carry the names of the calls they stand for

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.guard.census import Census, count_linux, count_psutil
from app.guard.gpu_reader import NvmlGpus, read_fdinfo
from app.guard.lines import MIB
from app.guard.reader import NO_READER, GpuReading, Pace, SlowReading, Wish
from app.guard.reader_process import ProcessReader, ThreadReader, make_read


def test_pace_asks_for_programs_seldom_and_for_gpus_often() -> None:
    pace = Pace()
    assert pace.due(0, (), on_gpu=True, is_pressed=True) is None
    first = pace.due(0, (1,), on_gpu=True, is_pressed=False)
    assert first == Wish((1,), gpus=True, programs=True)
    assert pace.due(0.6, (1,), on_gpu=True, is_pressed=False) is None  # not answered yet
    pace.answered()
    assert pace.due(0.4, (1,), on_gpu=True, is_pressed=False) is None
    second = pace.due(0.6, (1,), on_gpu=True, is_pressed=False)
    assert second == Wish((1,), gpus=True)
    pace.answered()
    assert pace.due(5, (1,), on_gpu=False, is_pressed=False) is None
    assert pace.due(5, (1,), on_gpu=False, is_pressed=True) == Wish((1,), programs=True)


def test_pace_does_not_wait_for_ever_for_a_driver() -> None:
    pace = Pace()
    assert pace.due(0, (1,), on_gpu=True, is_pressed=False) is not None
    assert pace.due(9, (1,), on_gpu=True, is_pressed=False) is None
    assert pace.due(11, (1,), on_gpu=True, is_pressed=False) is not None


def test_census_names_the_program_that_grew() -> None:
    clock = [0.0]
    counts = [{"editor": 500 * MIB, "compiler": 100 * MIB}]
    census = Census(lambda _ours: counts[-1], lambda: clock[0])
    assert census.look(frozenset()).program == ""
    clock[0] = 30
    counts.append({"editor": 510 * MIB, "compiler": 900 * MIB, "new": 100 * MIB})
    grown = census.look(frozenset())
    assert (grown.program, grown.bytes) == ("compiler", 800 * MIB)
    clock[0] = 1000
    counts.append({})
    assert census.look(frozenset()).program == ""


@pytest.mark.parametrize("count", [count_linux, count_psutil])
def test_census_counts_this_machine_without_what_is_ours(count: Any) -> None:
    assert all(size >= 0 for size in count(frozenset()).values())
    assert isinstance(count(frozenset({1})), dict)


class FakeNvml:
    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.fails = False

    def nvmlInit(self) -> None:
        if self.fails:
            raise self.NVMLError

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, _device: int) -> Any:
        return SimpleNamespace(total=1000, free=400)

    def nvmlDeviceGetComputeRunningProcesses(self, _device: int) -> list[Any]:
        return [
            SimpleNamespace(pid=7, usedGpuMemory=300),
            SimpleNamespace(pid=8, usedGpuMemory=None),
        ]

    def nvmlDeviceGetGraphicsRunningProcesses(self, _device: int) -> list[Any]:
        raise self.NVMLError


def test_nvml_reads_devices_and_processes() -> None:
    assert NvmlGpus(FakeNvml).read() == (GpuReading("CUDA0", 1000, 400, {7: 300}),)


@pytest.mark.parametrize(
    ("shown", "names"),
    [
        (None, ["a", "b", "c"]),
        ("2,0", ["c", "a"]),
        ("GPU-b", ["b"]),
        ("7", ["a", "b", "c"]),
    ],
)
def test_nvml_devices_are_numbered_within_what_the_user_shows(
    shown: str | None, names: list[str]
) -> None:
    class Three(FakeNvml):
        def nvmlDeviceGetCount(self) -> int:
            return 3

        def nvmlDeviceGetUUID(self, device: int) -> str:
            return f"GPU-{'abc'[device]}-0000"

        def nvmlDeviceGetMemoryInfo(self, device: int) -> Any:
            return SimpleNamespace(total=ord("abc"[device]), free=0)

    environ = {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    found = NvmlGpus(Three, environ).read()
    assert [chr(one.total_bytes) for one in found] == names
    assert [one.device for one in found] == [f"CUDA{n}" for n in range(len(names))]


def test_nvml_card_that_is_lost_does_not_hide_the_others() -> None:
    class Lost(FakeNvml):
        def nvmlDeviceGetCount(self) -> int:
            return 2

        def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
            if index == 0:
                raise self.NVMLError
            return index

    assert [one.device for one in NvmlGpus(Lost, {}).read()] == ["CUDA1"]


def test_nvml_that_fails_is_tried_once() -> None:
    nvml = FakeNvml()
    nvml.fails = True
    gpus = NvmlGpus(lambda: nvml)
    assert gpus.read() == ()
    nvml.fails = False
    assert gpus.read() == ()


def test_fdinfo_counts_each_client_once(tmp_path: Path) -> None:
    folder = tmp_path / "7/fdinfo"
    folder.mkdir(parents=True)
    text = (
        "pos:\t0\ndrm-pdev:\t0000:03:00.0\ndrm-client-id:\t5\n"
        "drm-memory-vram:\t100 MiB\ndrm-resident-gtt:\t2048 KiB\ndrm-memory-gtt: 4096 KiB\n"
    )
    (folder / "3").write_text(text)
    (folder / "4").write_text(text)
    (folder / "5").write_text("pos:\t0\n")
    (reading,) = read_fdinfo((7, 8), str(tmp_path))
    assert reading.by_pid == {7: 100 * MIB}
    assert reading.shared_by_pid == {7: 2 * MIB}


def reading_of(wish: Wish) -> SlowReading:
    if 13 in wish.pids:
        raise RuntimeError("the driver fell over")
    return SlowReading(1.0, (), f"seen {wish.pids[0]}", len(wish.ours))


@pytest.mark.parametrize("kind", [ProcessReader, ThreadReader])
def test_reader_answers_without_being_waited_for(kind: Any) -> None:
    reader = kind(lambda: reading_of)
    try:
        assert reader.latest().at_s < 0
        reader.want(0.0, (7,), on_gpu=True, is_pressed=False)
        deadline = time.monotonic() + 20
        while reader.latest().grown_program != "seen 7":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert reader.latest().grown_bytes >= 2
    finally:
        reader.close()


def test_reader_process_that_dies_costs_only_its_readings() -> None:
    reader = ProcessReader(lambda: reading_of)
    reader.want(0.0, (13,), on_gpu=True, is_pressed=False)
    deadline = time.monotonic() + 20
    while reader._answer >= 0:
        reader.latest()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    reader.want(100.0, (7,), on_gpu=True, is_pressed=False)
    assert reader.latest().at_s < 0
    reader.close()


def test_read_keeps_what_was_not_wished_for() -> None:
    gpu = GpuReading("CUDA0", 10, 5)
    read = make_read(lambda _ours: {"a": 1}, lambda _pids: (gpu,))
    assert read(Wish((1,), gpus=True)).gpus == (gpu,)
    second = read(Wish((1,), programs=True))
    assert second.gpus == (gpu,)
    assert second.grown_program == ""


def test_no_reader_reads_nothing() -> None:
    NO_READER.want(0.0, (1,), on_gpu=True, is_pressed=True)
    assert NO_READER.latest().at_s < 0
    NO_READER.close()
