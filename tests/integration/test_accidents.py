"""Five machines that froze: what was asked on them is refused with the right sum, and what is proposed
instead fits. The models are header-only files, the machines are given by flags."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.__main__ import main
from app.core.paths import Paths
from tests.fakes import accident_models as models

GIB = 1 << 30
KIB = 1 << 10


@dataclass(frozen=True)
class Accident:
    write: Callable[[Path], Path]
    gpu: str
    ram: str
    context: int
    slots: int
    kv_bytes_a_token: int
    owners_context: int
    owners_slots: int


ACCIDENTS = {
    "7B FP16, 16 clients": Accident(models.seven_b_f16, "24G", "64G", 8192, 16, 512 * KIB, 4096, 4),
    "27B at 4 bit, 8 sequences": Accident(
        models.twenty_seven_b_q4, "24G", "64G", 8192, 8, 0, 4096, 4
    ),
    "7B FP16, defaults": Accident(models.seven_b_f16, "24G", "64G", 32768, 8, 512 * KIB, 4096, 1),
    "7B Q4, 32 sequences": Accident(models.seven_b_q4, "8G", "32G", 8192, 32, 112 * KIB, 2048, 1),
}


@pytest.fixture
def plan(
    coolhead_home: Paths, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, dict[str, Any]]]:
    def run(path: Path, accident: Accident, *flags: str) -> tuple[int, dict[str, Any]]:
        machine = ["--gpu-mem", accident.gpu, "--ram", accident.ram]
        status = main(["plan", str(path), *machine, *flags, "--json"])
        return status, json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize("name", ACCIDENTS)
def test_accident_as_it_was_asked_is_refused_and_the_proposal_is_accepted(
    name: str, tmp_path: Path, plan: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    accident = ACCIDENTS[name]
    path = accident.write(tmp_path)
    status, answer = plan(
        path, accident, "--ctx", str(accident.context), "--slots", str(accident.slots)
    )
    assert status == 3
    assert not answer["fits"]
    assert answer["device"] == "CUDA0"
    card = next(part for part in answer["devices"] if part["device"] == "CUDA0")
    if accident.kv_bytes_a_token:
        tokens = accident.context * accident.slots
        assert card["kv_bytes"] == pytest.approx(tokens * accident.kv_bytes_a_token, rel=0.01)
    assert card["needed_bytes"] >= card["total_bytes"] > card["cap_bytes"]
    parts = ("weights", "kv", "compute", "output", "cache", "overhead")
    assert card["total_bytes"] == sum(card[f"{part}_bytes"] for part in parts)
    assert "may take" in answer["reason"]
    changes = answer["proposal"]["changes"]
    # What the owners found after days, or better.
    assert changes["model.context_tokens"] >= accident.owners_context
    assert changes["model.slots"] >= accident.owners_slots
    assert "model.placement" not in changes
    status, accepted = plan(
        path,
        accident,
        *("--ctx", str(changes["model.context_tokens"])),
        *("--slots", str(changes["model.slots"]), "--kv", changes["model.kv_type"]),
    )
    assert status == 0, accepted["reason"]
    # Without spilling: what stays in RAM is the embedding table and the engine.
    ram = next(part for part in accepted["devices"] if part["device"] == "RAM")
    assert ram["weights_bytes"] < GIB
    assert accepted["settings"]["gpu_layers"] > answer["settings"]["gpu_layers"] - 1


@pytest.mark.parametrize("name", ACCIDENTS)
def test_accident_machine_gets_a_preset_that_fits(
    name: str, tmp_path: Path, plan: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    accident = ACCIDENTS[name]
    for mood in ("quiet", "balanced", "full"):
        status, answer = plan(accident.write(tmp_path), accident, "--mood", mood)
        assert status == 0, answer["reason"]
        assert answer["settings"]["context_tokens"] >= 2048


def test_accident_without_a_gpu_fits_and_leaves_a_core_and_memory(
    tmp_path: Path, plan: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    """There it was not the memory of one load: threads and admission must keep it usable."""
    path = models.small(tmp_path)
    machine = Accident(models.small, "0", "64G", 512, 10, 0, 0, 0)
    status, answer = plan(path, machine, "--ctx", "512", "--slots", "10")
    assert status == 0
    assert answer["total_bytes"] < 2 * GIB
    assert answer["settings"]["batch_tokens"] <= 256
    assert answer["settings"]["prompt_cache_bytes"] == 0


def test_accident_in_words_shows_the_sum_and_the_way_out(
    coolhead_home: Paths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.seven_b_f16(tmp_path)
    flags = ["--gpu-mem", "24G", "--ram", "64G", "--ctx", "8192", "--slots", "16"]
    assert main(["plan", str(path), *flags]) == 3
    text = capsys.readouterr().out
    assert "64.0 GiB" in text
    assert "It does not fit. CUDA0" in text
    assert "What fits: 4 slots of 4," in text
