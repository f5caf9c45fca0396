"""Which engine is taken, and why."""

from app.core.backends.base import EngineInfo
from app.core.backends.choose import best_kind, choose_engine

CPU = EngineInfo("xllamacpp", "2026.10")
CUDA = EngineInfo("xllamacpp", "2026.10", devices=("CUDA0 (NVIDIA H200)",))
VULKAN = EngineInfo("llama-server", "b9000", devices=("Vulkan0 (AMD Radeon)",))
SOFTWARE = EngineInfo("llama-server", "b9000", devices=("Vulkan0 (llvmpipe (LLVM 15))",))
BROKEN = EngineInfo("llama-server", "b1", usable=False, reason="too old")


def test_choose_engine_auto_takes_the_best_kind_of_gpu() -> None:
    assert choose_engine([CPU, VULKAN]).engine is VULKAN
    assert choose_engine([CUDA, VULKAN]).engine is CUDA
    assert choose_engine([VULKAN, CUDA]).engine is CUDA
    assert "CUDA" in choose_engine([CUDA, VULKAN]).reason


def test_choose_engine_alike_takes_the_first_and_software_gpus_count_for_nothing() -> None:
    assert choose_engine([CPU, SOFTWARE]).engine is CPU
    assert best_kind(SOFTWARE) == ""
    assert "processor" in choose_engine([CPU, SOFTWARE]).reason


def test_choose_engine_one_request_at_a_time_comes_last() -> None:
    alone = EngineInfo("llama-cpp-python", "0.3", devices=("CUDA0 (x)",), is_parallel=False)
    assert choose_engine([alone, CPU]).engine is CPU
    assert choose_engine([alone]).engine is alone
    assert choose_engine([alone, CPU], "llama-cpp-python").engine is alone


def test_choose_engine_set_by_the_user_is_taken_or_refused_with_the_reason() -> None:
    assert choose_engine([CUDA, SOFTWARE], "llama-server").engine is SOFTWARE
    refused = choose_engine([CUDA, BROKEN], "llama-server")
    assert refused.engine is None
    assert "too old" in refused.reason
    assert choose_engine([CUDA], "llama-cpp-python").engine is None


def test_choose_engine_none_usable_tells_why_of_each() -> None:
    missing = EngineInfo("xllamacpp", "", usable=False, reason="it is not installed")
    choice = choose_engine([missing, BROKEN])
    assert choice.engine is None
    assert "not installed" in choice.reason
    assert "too old" in choice.reason


def test_choose_engine_cpu_build_beside_a_gpu_is_a_warning() -> None:
    assert "engine install" in choose_engine([CPU], gpus=["NVIDIA H200"]).warning
    assert choose_engine([CUDA], gpus=["NVIDIA H200"]).warning == ""
