"""The plan against what a worker really takes, with the real engine and real models.

A child process loads a model with the worker's own parameters, fills the whole context once, and
reads its own /proc/self/status.
"""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import gguf
import pytest

import app
from app.core.hardware.machine import imagined_machine
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import plan_memory
from app.core.models.plan_weights import repacked_share
from app.core.models.presets import choose
from app.core.models.spec import read_spec
from app.core.settings import Settings
from tests.fakes import gguf_models

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
MIB = 1 << 20
DEADLINE_S = 240

CHILD = """
import json, os, sys, urllib.request
import xllamacpp
from app.core.backends.engines.link import StartLine
from app.core.backends.engines.xllamacpp_server import parameters
from app.core.models.load_settings import LoadSettings
job = json.loads(sys.stdin.read())
load = LoadSettings(**job["load"])
server = xllamacpp.Server(parameters(xllamacpp, StartLine("m", job["path"], "k", load)))
for slot in range(load.slots):
    tokens = [100 + (slot + 37 * n) % 9000 for n in range(load.context_tokens - 12)]
    body = {"prompt": tokens, "n_predict": 8, "id_slot": slot, "ignore_eos": True}
    request = urllib.request.Request(
        server.listening_address + "/completion",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer k"},
    )
    with urllib.request.urlopen(request, timeout=200) as answer:
        assert json.load(answer)["tokens_evaluated"] == len(tokens)
taken = {}
for line in open("/proc/self/status"):
    name, _, value = line.partition(":")
    if name in ("RssAnon", "RssFile", "RssShmem"):
        taken[name] = int(value.split()[0]) * 1024
print(json.dumps(taken), flush=True)
os._exit(0)
"""


def _taken(path: Path, load: LoadSettings) -> dict[str, int]:
    process = subprocess.run(
        [sys.executable, "-P", "-c", CHILD],
        input=json.dumps({"path": str(path), "load": asdict(load)}).encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PYTHONPATH": str(Path(app.__file__).parent.parent), "PATH": "/usr/bin:/bin"},
        timeout=DEADLINE_S,
        check=True,
    )
    taken: dict[str, int] = json.loads(process.stdout)
    return taken


@pytest.mark.parametrize("model", ["smollm2", "gemma3_270m"])
@pytest.mark.parametrize(
    "load",
    [
        LoadSettings(context_tokens=256, slots=1, threads=1),
        LoadSettings(
            context_tokens=128, slots=2, threads=1, mmap=False, kv_type_k="q8_0", kv_type_v="q8_0"
        ),
    ],
    ids=["mapped", "copied"],
)
def test_worker_takes_what_was_planned(
    request: pytest.FixtureRequest, model: str, load: LoadSettings
) -> None:
    path = request.getfixturevalue(model)
    plan = plan_memory(read_spec(path), load)
    taken = _taken(path, load)
    planned, real = plan.own_bytes + plan.mapped_bytes, sum(taken.values())
    print(f"planned {planned / MIB:.0f} MiB, taken {real / MIB:.0f} MiB: {taken}")
    assert abs(planned - real) <= max(32 * MIB, real // 20)
    owned = taken["RssAnon"] + taken["RssShmem"]
    # The engine's libraries are planned with what the worker owns, but are pages of files.
    assert owned <= plan.own_bytes <= owned + 48 * MIB


def _mostly_q4_0(vocabulary_of: Path, path: Path) -> Path:
    """A model of zeros, 0.2B in Q4_0, with the vocabulary of a real one."""
    found = gguf.GGUFReader(vocabulary_of).fields
    words = {name: field.contents() for name, field in found.items() if "tokenizer." in name}
    model = gguf_models._base(
        "llama", embd=1024, layers=8, heads=16, kv=4, ff=4096, vocab=49152, context=8192
    )
    for layer in range(8):
        gguf_models._attention(model, layer, 1024, 1024, 256)
        gguf_models._dense(model, layer, 1024, 4096)
    model.tensors = [
        (name, shape, "q4_0" if len(shape) > 1 else kind) for name, shape, kind in model.tensors
    ]
    return gguf_models.write_model(model, path, extra=words)


def test_worker_that_lays_weights_out_anew_does_not_hold_them_twice(
    smollm2: Path, tmp_path: Path
) -> None:
    """What the presets choose for it takes what is planned; mapped it would take far more."""
    path = _mostly_q4_0(smollm2, tmp_path / "q4_0.gguf")
    spec = read_spec(path)
    assert spec.shape is not None
    chosen = choose(spec, imagined_machine(16 << 30), Settings()).load
    assert not chosen.mmap
    load = replace(chosen, context_tokens=128, slots=1, threads=1)
    plan = plan_memory(spec, load)
    copied = sum(_taken(path, load).values())
    mapped = sum(_taken(path, replace(load, mmap=True)).values())
    print(f"copied {copied / MIB:.0f} MiB, mapped {mapped / MIB:.0f} MiB")
    assert abs(plan.own_bytes - copied) <= max(32 * MIB, copied // 20)
    assert mapped - copied > 0.8 * repacked_share(spec.shape) * spec.size_bytes
