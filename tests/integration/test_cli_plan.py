"""`coolhead plan`, `presets` and `models` as a user types them."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.__main__ import main
from app.cli.plan_text import WIDTH, bar
from app.core.models.judge import Fit
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import DevicePlan, plan_memory
from app.core.models.spec import read_spec
from app.core.paths import Paths
from tests.fakes import gguf_models

GIB = 1 << 30
PARTS = ("weights", "kv", "compute", "output", "cache", "overhead")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return gguf_models.write_model(gguf_models.llama_1b(), tmp_path / "one-b.gguf")


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main([*words, "--json"])
    return dict(json.loads(capsys.readouterr().out))


def test_plan_json_is_the_plan_to_the_byte(
    model: Path, coolhead_home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    told = answer(capsys, "plan", str(model), "--ctx", "4096", "--slots", "2", "--kv", "q8_0")
    load = msgspec.convert(told["settings"], LoadSettings)
    plan = plan_memory(read_spec(model), load)
    assert (load.context_tokens, load.slots, load.kv_type_k) == (4096, 2, "q8_0")
    assert (told["own_bytes"], told["mapped_bytes"]) == (plan.own_bytes, plan.mapped_bytes)
    for row in told["devices"]:
        part = plan.device(row["device"])
        for name in PARTS:
            assert row[f"{name}_bytes"] == getattr(part, f"{name}_bytes")
        assert row["total_bytes"] == part.total_bytes


def test_plan_fits_here_in_words(
    model: Path, coolhead_home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(model), "--ram", "16G", "--gpu-mem", "0"]) == 0
    text = capsys.readouterr().out
    assert "It fits." in text
    assert "16.0 GiB" in text
    assert "##" in text


def test_plan_two_imagined_cards_are_two_devices(
    model: Path, coolhead_home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    told = answer(capsys, "plan", str(model), "--gpu-mem", "8GiB,8192M", "--ram", "32G")
    assert [row["device"] for row in told["devices"]] == ["RAM", "CUDA0", "CUDA1"]


def test_plan_caps_of_this_machine_do_not_bound_another(
    model: Path, coolhead_home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    coolhead_home.settings_file.write_text("memory:\n  ram_cap_bytes: 300000000\n")
    assert not answer(capsys, "plan", str(model))["fits"]
    assert answer(capsys, "plan", str(model), "--ram", "32G", "--gpu-mem", "0")["fits"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--ram", "much"],
        ["--ram", "0"],
        ["--ram", "16"],
        ["--gpu-mem", "8G,x"],
        ["--gpu-mem", "8"],
        ["--kv", "f64"],
    ],
)
def test_plan_wrong_flags_are_wrong_usage(
    flags: list[str], model: Path, coolhead_home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(model), *flags])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert flags[0] in said
    if flags[1] in {"8", "16"}:
        assert f"write {flags[1]}G" in said


@pytest.mark.parametrize("flags", [["--ctx", "-5"], ["--slots", "1000"]])
def test_plan_figures_outside_their_range_are_told(
    flags: list[str], model: Path, coolhead_home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(model), *flags]) == 1
    assert "it takes" in capsys.readouterr().err


def test_plan_model_that_is_not_there_is_told(
    coolhead_home: Paths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "nobody"]) == 1
    assert "No model is installed" in capsys.readouterr().err
    (tmp_path / "no.gguf").write_text("no")
    assert main(["plan", str(tmp_path / "no.gguf")]) == 1
    assert "no.gguf" in capsys.readouterr().err


def test_plan_exact_for_gpus_of_another_machine_is_the_formulas_and_says_so(
    model: Path, coolhead_home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("plan", str(model), "--gpu-mem", "8G", "--ram", "32G")
    told = answer(capsys, *flags, "--exact")
    assert told["source"] == "formula"
    assert "this machine's GPUs only" in told["note"]
    assert told["devices"][1]["weights_bytes"] > 400 << 20
    assert told["devices"] == answer(capsys, *flags)["devices"]


def test_plan_of_the_catalogue_is_an_estimate_before_the_download(
    coolhead_home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    told = answer(capsys, "plan", "Qwen3-8B", "--ram", "32G", "--gpu-mem", "0", "--exact")
    assert (told["source"], told["is_installed"], told["path"]) == ("formula", False, None)
    assert told["margin_percent"] == 20
    assert "estimate" in told["note"]
    assert "fetch it first" in told["note"]
    assert told["total_bytes"] > 5e9
    assert main(["plan", "qwen3-8b", "--ram", "6G", "--gpu-mem", "0"]) == 3
    text = capsys.readouterr().out
    assert "about 4.7 GiB" in text
    assert "coolhead models pull qwen3-8b" in text


def test_plan_of_the_catalogue_is_of_the_file_once_it_is_there(
    coolhead_home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = gguf_models.llama_1b()
    gguf_models.write_model(fake, coolhead_home.models / "SmolLM2-135M-Instruct.Q4_1.gguf")
    assert answer(capsys, "plan", "smollm2-135m")["is_installed"]


def test_plan_says_where_each_bound_comes_from(
    model: Path, coolhead_home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("plan", str(model), "--ram", "16G", "--gpu-mem", "0")
    told = " ".join(answer(capsys, *flags, "--mood", "quiet", "--ctx", "32768")["reasons"])
    assert "as set; it fits: " in told
    assert "that models may take of RAM the quiet mood uses up to" in told
    told = " ".join(answer(capsys, *flags, "--slots", "8")["reasons"])
    assert "8 slots as set" in told
    assert "the balanced mood asks for" not in told
    assert main(["plan", str(model), "--ram", "1G", "--gpu-mem", "0"]) == 3
    text = capsys.readouterr().out
    assert "nothing is left for models" in text
    assert "may take 0" not in text


def test_presets_of_this_machine_are_told_for_each_mood(
    coolhead_home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["presets"]) == 0
    text = capsys.readouterr().out
    assert all(mood in text for mood in ("quiet", "balanced (set)", "full"))
    told = answer(capsys, "presets")
    assert set(told["moods"]) == {"quiet", "balanced", "full"}
    assert told["machine"]["ram_total_bytes"] > 0
    assert told["limits"]["ram_reserve_bytes"] > 0


def test_models_without_any_shows_what_can_be_pulled(
    coolhead_home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models"]) == 0
    assert "smollm2-135m" in capsys.readouterr().out
    assert main(["models", "path"]) == 0
    assert capsys.readouterr().out.strip() == str(coolhead_home.models)


def test_models_lists_what_is_there_and_what_is_damaged(
    coolhead_home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    gguf_models.write_model(gguf_models.llama_1b(), coolhead_home.models / "One B.gguf")
    (coolhead_home.models / "bad.gguf").write_bytes(b"GGUF")
    told = answer(capsys, "models", "list")
    assert [row["id"] for row in told["models"]] == ["one-b"]
    assert [row["id"] for row in told["damaged"]] == ["bad"]
    assert {row["name"] for row in told["catalogue"] if not row["is_installed"]} >= {"qwen3-8b"}
    assert main(["models", "list"]) == 0
    text = capsys.readouterr().out
    assert "one-b" in text
    assert "~ 4.7 GiB" in text
    assert main(["models", "rm", "bad"]) == 0
    assert main(["models", "list"]) == 0
    assert "bad" not in capsys.readouterr().out.split("freed.")[1]


def test_models_in_the_users_own_folder_are_not_deleted(
    model: Path, coolhead_home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    coolhead_home.settings_file.write_text(f"model:\n  folders: {model.parent}\n")
    assert main(["models", "rm", "one-b"]) == 1
    assert "left alone" in capsys.readouterr().err
    assert model.exists()


def test_bar_is_drawn_to_scale() -> None:
    fit = Fit(True, "RAM", 0, 14 * GIB, 2 * GIB, 0, "")
    drawn = bar(DevicePlan("RAM", weights_bytes=4 * GIB, kv_bytes=2 * GIB), fit, 16 * GIB, 14 * GIB)
    assert len(drawn) == WIDTH
    assert drawn.count("#") == pytest.approx(WIDTH / 4, abs=1)
    assert (drawn[0], drawn[-1]) == ("x", "-")
    too_large = bar(DevicePlan("RAM", weights_bytes=40 * GIB), fit, 16 * GIB, 14 * GIB)
    assert (len(too_large), too_large[-1]) == (WIDTH, ">")


@pytest.mark.real
def test_plan_exact_is_priced_by_the_engine(
    smollm2: Path, coolhead_home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    told = answer(capsys, "plan", str(smollm2), "--exact", "--ctx", "2048", "--slots", "2")
    assert told["source"] == "dry_run"
    assert told["fits"]
    assert told["devices"][0]["kv_bytes"] == pytest.approx(2 * 2048 * 30 * 3 * 64 * 2 * 2, rel=0.01)
