"""llama-server: any build of llama.cpp's own server program, from PATH or from the settings.

Builds differ by years, so nothing is taken for granted: what the program's `--help` offers is used,
and a build that lacks what a bounded load needs is refused with the reason.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from app.core.backends.base import Capabilities, EngineInfo
from app.core.backends.engine import PROBE_S, Program, device_text, gpus_of
from app.core.backends.engine_xllamacpp import LLAMA_CPP_WIRES
from app.core.backends.own_program import own_argv, worker_env
from app.core.hardware.engine_devices import EngineDevice, parse_device_list
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import MemoryPlan
from app.core.settings import Settings

MIB = 1024 * 1024
NEEDED_FLAGS = (
    *("--model", "--ctx-size", "--parallel", "--batch-size", "--ubatch-size", "--threads"),
    *("--cache-type-k", "--cache-type-v", "--host", "--port", "--n-gpu-layers", "--jinja"),
    *("--api-key", "--metrics", "--flash-attn"),
)
"""Without these a load cannot be bounded, or not be kept to ourselves."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a program said of itself; `problem` is empty where it is usable."""

    version: str
    flags: frozenset[str]
    has_flash_word: bool
    devices: tuple[EngineDevice, ...]
    problem: str = ""


class LlamaServer:
    """Thread: any.

    Args:
        settings: the current settings; a changed path is seen at the next call.
    """

    name = "llama-server"
    capabilities = Capabilities(wires=LLAMA_CPP_WIRES)

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings

    def find(self, *, with_devices: bool = True) -> EngineInfo:
        del with_devices  # one probe tells all
        path = self._path()
        if not path:
            wanted = self._settings().engine.llama_server
            reason = f"{wanted} is not there" if wanted else "there is none on PATH"
            return EngineInfo(self.name, "", wanted, usable=False, reason=reason)
        probe = _probe(path)
        return EngineInfo(
            self.name,
            probe.version,
            path,
            tuple(device_text(device) for device in probe.devices),
            usable=not probe.problem,
            reason=probe.problem,
        )

    def devices(self) -> tuple[EngineDevice, ...] | None:
        path = self._path()
        return _probe(path).devices if path else ()

    def program(self, load: LoadSettings, plan: MemoryPlan) -> Program:
        path = self._path()
        flags = arguments(_probe(path), load, gpus_of(plan))
        options = {"program": path, "flags": json.dumps(flags)}
        if "--reuse-port" in _probe(path).flags:
            options["reuse_port"] = "1"
        if "--api-key-file" in _probe(path).flags:
            options["key_file"] = "1"
        return Program(own_argv("worker", self.name), worker_env(), options)

    def _path(self) -> str:
        wanted = self._settings().engine.llama_server
        return shutil.which(wanted or self.name) or ""


def arguments(probe: Probe, load: LoadSettings, gpus: list[str]) -> list[str]:
    """The command line for a load, without the model, the key and the port. Pure."""
    given: list[str] = []

    def use(flag: str, *values: object) -> bool:
        if flag in probe.flags:
            given.extend([flag, *map(str, values)])
        return flag in probe.flags

    use("--ctx-size", load.engine_context_tokens)
    use("--parallel", load.slots)
    use("--batch-size", load.batch_tokens)
    use("--ubatch-size", load.ubatch_tokens)
    use("--threads", load.threads)
    use("--threads-batch", load.threads)
    use("--cache-type-k", load.kv_type_k)
    use("--cache-type-v", load.kv_type_v)
    if probe.has_flash_word:
        use("--flash-attn", "on" if load.flash_attention else "off")
    elif load.flash_attention:
        use("--flash-attn")
    use("--kv-unified" if load.kv_unified else "--no-kv-unified")
    if load.swa_full:
        use("--swa-full")
    use("--cache-ram", load.prompt_cache_bytes // MIB)
    if not load.prompt_cache_bytes:
        use("--no-cache-idle-slots")
    use("--ctx-checkpoints", load.checkpoints) or use("--swa-checkpoints", load.checkpoints)
    if not use("--load-mode", "mmap" if load.mmap else "none") and not load.mmap:
        use("--no-mmap")
    use("--fit", "off")
    use("--no-context-shift")
    use("--offline")

    use("--n-gpu-layers", load.gpu_layers)
    if load.gpu_layers and gpus:
        use("--device", ",".join(gpus))
    else:
        use("--device", "none")
        use("--no-kv-offload")
        use("--no-op-offload")
    if load.tensor_split:
        use("--tensor-split", ",".join(str(share) for share in load.tensor_split))
    if load.experts_in_ram:
        use("--n-cpu-moe", load.experts_in_ram)
    if load.mmproj:
        use("--mmproj", load.mmproj)
    for adapter in load.adapters:
        use("--lora", adapter)
    if load.draft:
        use("--model-draft", load.draft)
        use("--n-gpu-layers-draft", load.gpu_layers)

    use("--host", "127.0.0.1")
    use("--no-ui") or use("--no-webui")
    use("--metrics")
    use("--slots")
    use("--jinja")
    use("--sse-ping-interval", -1)
    return given


def read_help(text: str) -> frozenset[str]:
    """Every long flag that a help text offers, in the lines that define one."""
    found: set[str] = set()
    for line in text.splitlines():
        for word in line.split() if line.startswith("-") else ():
            if not word.startswith("-"):
                break  # a value or the description: what it mentions is not offered here
            found.add(word.rstrip(","))
    return frozenset(found)


def _probe(path: str) -> Probe:
    try:
        return _probe_version_of(path, Path(path).stat().st_mtime_ns)
    except OSError as error:
        return Probe("", frozenset(), False, (), f"{path} cannot be read: {error.strerror}")


@lru_cache(maxsize=8)
def _probe_version_of(path: str, _changed_ns: int) -> Probe:
    try:
        words = _say(path, "--help")
        version = _say(path, "--version")
    except (OSError, subprocess.SubprocessError) as error:
        return Probe("", frozenset(), False, (), f"{path} does not run: {error}")
    flags = read_help(words)
    match = re.search(r"version:\s*(.+)", version)
    missing = [flag for flag in NEEDED_FLAGS if flag not in flags]
    problem = ""
    if not flags:
        problem = f"{path} is no llama-server: it offers no flags"
    elif missing:
        problem = f"this build is too old: it lacks {', '.join(missing)}"
    devices: tuple[EngineDevice, ...] = ()
    if "--list-devices" in flags:
        try:
            devices = parse_device_list(_say(path, "--list-devices"))
        except (OSError, subprocess.SubprocessError) as error:
            problem = problem or f"its devices could not be listed: {error}"
    return Probe(
        match[1].strip() if match else "unknown",
        flags,
        re.search(r"--flash-attn\s+[\[<]?on", words) is not None,
        devices,
        problem,
    )


def _say(path: str, flag: str) -> str:
    """What the program prints, on either stream; some builds leave with a status of 1."""
    done = subprocess.run(
        [path, flag],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PROBE_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return f"{done.stdout}\n{done.stderr}"
