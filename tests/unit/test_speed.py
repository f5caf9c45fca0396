"""Estimates of speed: near what was measured, and never surer than they are."""

import re

from hypothesis import given
from hypothesis import strategies as st

from app.core.hardware.machine import Machine, imagined_machine
from app.core.models.catalogue import entry_for
from app.core.models.load_settings import LoadSettings
from app.core.models.outline import outlined
from app.core.models.plan import plan_memory
from app.core.models.speed import LOW_SHARE, speed_text, tokens_per_s

GIB = 1 << 30


def told(name: str, threads: int, where: Machine) -> tuple[float, float]:
    """The range for a model of the catalogue, on GPUs where there are some."""
    spec = outlined(entry_for(name))
    gpus = tuple(gpu.device for gpu in where.gpus)
    load = LoadSettings(threads=threads, gpu_layers=99 if gpus else 0)
    speed = tokens_per_s(spec, plan_memory(spec, load, gpus), where, threads)
    return speed * LOW_SHARE, speed * 1.5


def test_speed_one_thread_is_near_what_was_measured() -> None:
    """57 to 82 tokens a second on an idle server's core, 13 to 57 beside other work."""
    low, high = told("smollm2-135m", 1, imagined_machine(24 * GIB))
    assert low < 30
    assert 70 < high < 90


def test_speed_grows_with_threads_up_to_what_memory_gives() -> None:
    where = imagined_machine(32 * GIB)
    speeds = [told("qwen3-8b", threads, where)[1] for threads in (1, 2, 4, 8, 16, 32)]
    assert speeds == sorted(speeds)
    assert speeds[0] < 2.5
    assert speeds[-1] == speeds[-2] < 15


def test_speed_on_a_card_is_much_faster_than_on_the_processor() -> None:
    card = told("qwen3-8b", 8, imagined_machine(32 * GIB, [24 * GIB]))
    assert card[0] > 2 * told("qwen3-8b", 8, imagined_machine(32 * GIB))[1]


@given(st.floats(0.01, 1e6))
def test_speed_in_words_is_a_range_without_false_precision(speed: float) -> None:
    words = speed_text(speed)
    figures = [int(figure) for figure in re.findall(r"\d+", words)]
    assert "." not in words
    assert all(figure < 1000 for figure in figures)
    assert figures == sorted(figures)
    if speed < 1e3 and len(figures) == 2:
        assert figures[0] <= speed <= figures[1] * 1.2 + 1


def test_speed_in_words_is_plain() -> None:
    assert speed_text(54.0) == "roughly 25 to 80 tokens a second"
    assert speed_text(8.1) == "roughly 4 to 10 tokens a second"
    assert speed_text(1.2) == "at most 1 token a second"
    assert speed_text(0.3) == "less than 1 token a second"
    assert speed_text(5000.0) == "more than 300 tokens a second"
