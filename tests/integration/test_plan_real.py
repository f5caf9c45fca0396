"""The plan against what a worker really takes, with the real engine and real models.

A child process loads a model with the worker's own parameters, fills the whole context once, and
reads its own /proc/self/status.
"""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

import app
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import plan_memory
from app.core.models.spec import read_spec

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
