"""How a model is started: caps, what goes in the start line, flags for any build of llama-server."""

import itertools
from pathlib import Path

import pytest

from app.core.backends.base import EngineInfo
from app.core.backends.caps import caps_for
from app.core.backends.engine import gpus_of
from app.core.backends.engine_llama_server import (
    NEEDED_FLAGS,
    LlamaServer,
    Probe,
    arguments,
    read_help,
)
from app.core.backends.engine_xllamacpp import Xllamacpp, visible_devices
from app.core.backends.engines.link import (
    FailedLine,
    ReadyLine,
    StartLine,
    parse_answer,
    parse_start,
)
from app.core.backends.llama_cpp import LlamaCppBackend
from app.core.errors import EngineMissing, ModelFileMissing
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import DevicePlan, MemoryPlan
from app.core.models.spec import ModelSpec
from app.core.settings import Settings

GIB = 1024**3
MIB = 1024**2
PLAN = MemoryPlan(
    (DevicePlan("RAM", kv_bytes=8 * GIB), DevicePlan("CUDA1", weights_bytes=GIB)),
    8 * GIB,
    GIB,
    "formula",
    10.0,
)
HELP = """
----- common params -----

-h,    --help, --usage                  print usage and exit
-c,    --ctx-size N                     size of the prompt context (default: 0)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use
--mmap, --no-mmap                       DEPRECATED in favor of `--load-mode`: whether to map
                                        use --mlock instead
-ot,   --override-tensor <tensor name pattern>=<buffer type>,...
-ngl,  --gpu-layers, --n-gpu-layers N   max. number of layers
"""


def spec(path: Path) -> ModelSpec:
    return ModelSpec("m", path, (path,), 1, "gguf", "llama", "m", "Q4", 1, 4096, 2, True, None)


def test_caps_are_the_plan_and_a_tenth_or_half_a_gibibyte() -> None:
    caps = caps_for(PLAN, LoadSettings(threads=3, slots=2))
    assert caps.own_bytes == 8 * GIB + int(0.8 * GIB)
    assert caps.planned_own_bytes == 8 * GIB
    assert caps.mapped_bytes == GIB
    assert caps.gpu_bytes == {"CUDA1": GIB + 512 * MIB}
    assert caps.threads >= 5
    assert gpus_of(PLAN) == ["CUDA1"]


def test_start_line_survives_the_way_and_a_damaged_one_is_refused() -> None:
    line = StartLine("m", "/x.gguf", "k", LoadSettings(tensor_split=(0.5, 0.5)), {"a": "b"})
    assert parse_start(line.encode()) == line
    for damaged in (b"", b"{}", b"[1]", b'{"load": 1}'):
        with pytest.raises(ValueError):
            parse_start(damaged)


def test_start_line_too_long_for_a_pipe_is_refused() -> None:
    with pytest.raises(ValueError, match="pipe"):
        StartLine("m", "x" * 70_000, "k", LoadSettings()).encode()


def test_answers_of_a_worker_are_told_from_its_chatter() -> None:
    assert parse_answer(b'{"port": 5, "slots": 2}') == ReadyLine(5, slots=2)
    assert parse_answer(b'{"failed": "no"}') == FailedLine("no")
    for chatter in (b"loading", b"{", b'{"x": 1}', b""):
        assert parse_answer(chatter) is None


def test_prepare_keeps_the_key_out_of_argv_and_environment(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.touch()
    plan = LlamaCppBackend(engines=[Xllamacpp()]).prepare(spec(file), LoadSettings(), PLAN)
    assert plan.key in plan.stdin.decode()
    assert plan.key not in " ".join([*plan.argv, *plan.env.values()])
    assert plan.argv[-2:] == ("worker", "xllamacpp")
    assert plan.env["CUDA_VISIBLE_DEVICES"] == ""
    assert plan.engine.version


def test_prepare_missing_file_or_engine_says_which(tmp_path: Path) -> None:
    with pytest.raises(ModelFileMissing):
        LlamaCppBackend(engines=[Xllamacpp()]).prepare(
            spec(tmp_path / "gone.gguf"), LoadSettings(), PLAN
        )
    settings = Settings().replace(
        {"engine.llama_server": str(tmp_path / "none"), "engine.engine": "llama-server"}
    )
    with pytest.raises(EngineMissing, match="none"):
        LlamaCppBackend(lambda: settings).engine_for(spec(tmp_path))


def test_visible_devices_count_within_what_the_user_shows() -> None:
    assert visible_devices(["CUDA1"], {})["CUDA_VISIBLE_DEVICES"] == "1"
    assert (
        visible_devices(["CUDA1"], {"CUDA_VISIBLE_DEVICES": "2,3"})["CUDA_VISIBLE_DEVICES"] == "3"
    )
    assert visible_devices(["Vulkan0"], {})["GGML_VK_VISIBLE_DEVICES"] == "0"
    assert visible_devices([], {})["CUDA_VISIBLE_DEVICES"] == ""


def test_read_help_takes_what_is_defined_and_not_what_is_mentioned() -> None:
    flags = read_help(HELP)
    assert {"--ctx-size", "--no-mmap", "--gpu-layers", "--n-gpu-layers", "-ngl"} <= flags
    assert "--override-tensor" in flags
    assert flags.isdisjoint({"--load-mode", "--mlock"})


def test_arguments_of_an_old_build_leave_out_what_it_does_not_know() -> None:
    old = Probe("b3000", frozenset(NEEDED_FLAGS) | {"--no-mmap"}, False, ())
    given = arguments(old, LoadSettings(context_tokens=1000, slots=3, mmap=False), [])
    assert given[given.index("--ctx-size") + 1] == "3000"
    assert "--no-mmap" in given
    assert not {"--cache-ram", "--fit", "--device"} & set(given)
    assert {flag for flag in given if flag.startswith("--")} <= old.flags


def test_arguments_of_a_new_build_leave_nothing_to_its_defaults() -> None:
    new = frozenset(
        (*NEEDED_FLAGS, "--cache-ram", "--fit", "--device", "--load-mode", "--ctx-checkpoints")
    )
    load = LoadSettings(gpu_layers=20, tensor_split=(0.6, 0.4))
    given = arguments(Probe("b9000", new, True, ()), load, ["CUDA0", "CUDA1"])
    told = dict(itertools.pairwise(given))
    assert told["--cache-ram"] == "0"
    assert told["--ctx-checkpoints"] == "0"
    assert told["--fit"] == "off"
    assert told["--load-mode"] == "mmap"
    assert told["--flash-attn"] == "on"
    assert told["--device"] == "CUDA0,CUDA1"
    assert told["--host"] == "127.0.0.1"
    on_cpu = arguments(Probe("b9000", new, True, ()), LoadSettings(), [])
    assert on_cpu[on_cpu.index("--device") + 1] == "none"


def test_llama_server_that_is_something_else_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    info = LlamaServer(lambda: Settings().replace({"engine.llama_server": str(program)})).find()
    assert not info.usable
    assert "no llama-server" in info.reason


def test_llama_server_that_is_not_there_is_not_usable() -> None:
    missing = Settings().replace({"engine.llama_server": "/nowhere/llama-server"})
    assert LlamaServer(lambda: missing).find() == EngineInfo(
        "llama-server",
        "",
        "/nowhere/llama-server",
        usable=False,
        reason="/nowhere/llama-server is not there",
    )
