"""llama-server on a Vulkan device with memory of its own: planned, placed, and refused when full."""

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.core.backends.engine_llama_server import LlamaServer, _probe_version_of
from app.core.backends.llama_cpp import LlamaCppBackend
from app.core.backends.taken import taken_by
from app.core.errors import DoesNotFit
from app.core.models.load_settings import LoadSettings
from app.core.settings import Settings
from tests.engines.engine_bench import ask, bench, chat_body

pytestmark = pytest.mark.real
DEVICE = "Vulkan0"
WEIGHTS_BYTES = 90_000_000
LOAD = LoadSettings(
    context_tokens=1024, slots=1, threads=1, batch_tokens=64, ubatch_tokens=64, gpu_layers=99
)


@pytest.fixture
def vulkan(llama_server: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LlamaCppBackend]:
    """Shows the software device too, which builds hide unless it is asked for by number."""
    if not list(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*")):
        pytest.skip("no Vulkan driver here: mesa-vulkan-drivers brings a software one")
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0")
    _probe_version_of.cache_clear()  # whoever asked before did not see the device
    settings = Settings().replace({"engine.llama_server": str(llama_server)})
    engine = LlamaServer(lambda: settings)
    assert [device.name for device in engine.devices() or ()] == [DEVICE]
    yield LlamaCppBackend(engines=[engine])
    _probe_version_of.cache_clear()


def test_llama_server_vulkan_all_layers_are_placed_on_the_device(
    vulkan: LlamaCppBackend, smollm2: Path
) -> None:
    async def story() -> None:
        async with bench(vulkan, {"m": smollm2}, LOAD, [DEVICE]) as made:
            worker = await made.supervisor.ensure_ready("m")
            view = made.supervisor.worker("m")
            assert view is not None
            assert view.planned_bytes[DEVICE] > 0
            # The device's memory is the process's own here, so the weights are no longer mapped.
            libraries = [each.path for each in psutil.Process(view.pid).memory_maps()]
            assert any("libvulkan_lvp" in path for path in libraries)
            taken = taken_by(view.pid)
            assert taken is not None
            assert taken.own_bytes > WEIGHTS_BYTES
            answer = await ask(worker, "/v1/chat/completions", chat_body("Why?", 2))
            assert answer.status == 200

    asyncio.run(story())


def test_llama_server_vulkan_more_than_the_device_has_is_refused(
    vulkan: LlamaCppBackend, smollm2: Path
) -> None:
    large = dataclasses.replace(LOAD, context_tokens=8192, slots=32)

    async def story() -> None:
        async with bench(vulkan, {"m": smollm2}, large, [DEVICE]) as made:
            with pytest.raises(DoesNotFit) as caught:
                await made.supervisor.ensure_ready("m")
            assert caught.value.details["device"] == DEVICE

    asyncio.run(story())
