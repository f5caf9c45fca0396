"""The real pynvml, talking to a stand-in for the driver's library that is compiled here."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
READ = """
import dataclasses, json
from app.core.hardware.nvml import read_nvml
print(json.dumps(dataclasses.asdict(read_nvml())))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(
        [
            *(compiler, "-shared", "-fPIC", "-Wall", "-Werror"),
            *("-o", str(folder / "libnvidia-ml.so.1")),
            str(ROOT / "tests" / "fakes" / "nvml_stand_in.c"),
        ],
        check=True,
        timeout=60,
    )
    return folder


def read(library: Path | None, scenario: str = "") -> dict[str, Any]:
    env = {**os.environ, "FAKE_NVML": scenario, "PYTHONPATH": str(ROOT)}
    if library is not None:
        env["LD_LIBRARY_PATH"] = str(library)
    answer = subprocess.run(
        [sys.executable, "-P", "-c", READ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=env,
    )
    return dict(json.loads(answer.stdout))


def test_nvml_two_cards_are_read_with_memory_display_and_processes(library: Path) -> None:
    reading = read(library)
    assert reading["problem"] == ""
    first, second = reading["gpus"]
    assert (first["device"], first["name"]) == ("CUDA0", "NVIDIA GeForce RTX 4090")
    assert (first["total_bytes"], first["free_bytes"]) == (24 * GIB, 22 * GIB)
    assert (first["pci"], first["uuid"], first["driver"]) == ("0000:01:00.0", "GPU-a", "575.64")
    assert first["has_display"]
    assert not second["has_display"]
    assert second["pci"] == "0000:0a:00.0"
    assert first["processes"] == [
        {"pid": 815, "used_bytes": 0},
        {"pid": 4711, "used_bytes": GIB},
    ]
    assert second["processes"] == []


def test_nvml_driver_updated_under_way_says_restart(library: Path) -> None:
    reading = read(library, "mismatch")
    assert reading["gpus"] == []
    assert "restart" in reading["problem"]


def test_nvml_driver_not_loaded_is_said(library: Path) -> None:
    assert "not loaded" in read(library, "unloaded")["problem"]


def test_nvml_lost_card_leaves_the_other_one(library: Path) -> None:
    reading = read(library, "lost")
    assert [gpu["name"] for gpu in reading["gpus"]] == ["NVIDIA GeForce RTX 3070"]
    assert "card 0" in reading["problem"]


def test_nvml_gpu_that_works_in_ram_is_integrated(library: Path) -> None:
    (gpu,) = read(library, "unified")["gpus"]
    assert gpu["is_integrated"]
    assert gpu["total_bytes"] == 0


def test_nvml_without_a_driver_is_silent() -> None:
    from app.core.hardware.nvml import NvmlReading

    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has an NVIDIA driver")
    assert read(None) == dataclasses.asdict(NvmlReading()) | {"gpus": []}
