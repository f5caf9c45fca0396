"""A slider prices the plan at each move, so it has to be quick."""

import time
from pathlib import Path

from app.core.models.load_settings import LoadSettings
from app.core.models.plan import plan_memory
from app.core.models.spec import read_spec
from tests.fakes import gguf_models


def test_plan_of_a_large_model_takes_under_a_millisecond(tmp_path: Path) -> None:
    spec = read_spec(
        gguf_models.write_model(gguf_models.gemma3_27b(), tmp_path / "m.gguf", vocabulary=262_144)
    )
    times = []
    for context in range(1024, 61 * 1024, 1024):
        begin = time.process_time()
        plan_memory(spec, LoadSettings(context_tokens=context, slots=4, gpu_layers=40), ("CUDA0",))
        times.append(time.process_time() - begin)
    assert sorted(times)[len(times) // 2] < 0.001
