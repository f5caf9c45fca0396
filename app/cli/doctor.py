"""`coolhead doctor [--json]`: what this machine has, what would be used, and what to do about the rest.

Looks for itself; a running Coolhead is only asked what its guard enforces. Exit status 1 when
something blocks.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app import __version__
from app.cli.client import RunningApp, find_running
from app.cli.findings import Finding, Grade
from app.cli.text import size
from app.core.backends.choose import choose_engine
from app.core.backends.llama_cpp import LlamaCppBackend
from app.core.backends.mlx import MlxBackend
from app.core.errors import CoolheadError
from app.core.hardware.last_seen import missing_gpus, missing_sentence
from app.core.hardware.machine import Machine
from app.core.hardware.probe import probe_machine
from app.core.lifecycle import CapKind
from app.core.models.catalogue import starter
from app.core.models.library import ModelLibrary
from app.core.models.limits import limits_from
from app.core.paths import HOME_VARIABLE, Paths, user_paths
from app.core.router.http_listen import holder_of
from app.core.settings import Settings
from app.core.settings_file import SettingsFile
from app.core.settings_meta import GIB
from app.guard.client import GuardClient

LEAST_DISK_BYTES = 2 * GIB
MARKS = {Grade.OK: "ok", Grade.NOTE: "--", Grade.WARNING: "!!", Grade.BLOCKS: "XX"}


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser("doctor", help="what this machine has, and what it lacks")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """0, or 1 when a finding blocks."""
    findings = list(examine())
    if args.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            print(f"[{MARKS[finding.grade]}] {finding.subject}: {finding.text}")
            if finding.advice:
                print(f"     -> {finding.advice}")
    return 1 if any(finding.grade is Grade.BLOCKS for finding in findings) else 0


def examine() -> Iterator[Finding]:
    """Every finding, in the order in which they matter."""
    paths = user_paths()
    loaded = SettingsFile(paths.settings_file).load()
    running = find_running(paths)
    yield from _program()
    for problem in loaded.problems:
        yield Finding("settings", Grade.WARNING, problem, "Correct the file, or set it anew.")
    yield from _folders(paths)
    machine = probe_machine()
    yield from _machine(machine, loaded.settings)
    yield from _gone(machine, paths)
    yield from _engines(machine, loaded.settings, paths)
    yield from _cap(running)
    yield _port(running, loaded.settings)
    yield _tray()
    yield from _models(paths, loaded.settings)


def _program() -> Iterator[Finding]:
    yield Finding("app", Grade.OK, f"coolhead {__version__} from {Path(__file__).parents[1]}")
    version = platform.python_version()
    yield Finding("python", Grade.OK, f"{version} ({sys.executable}) on {platform.platform()}")


def _folders(paths: Paths) -> Iterator[Finding]:
    for name in ("config", "state", "data", "logs"):
        folder: Path = getattr(paths, name)
        nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
        if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
            yield Finding(f"{name} folder", Grade.OK, str(folder))
            continue
        yield Finding(
            f"{name} folder",
            Grade.BLOCKS,
            f"{folder} cannot be written.",
            f"Make {nearest} writable, or set {HOME_VARIABLE} to a folder that is.",
        )
    nearest = next(parent for parent in (paths.data, *paths.data.parents) if parent.exists())
    free = shutil.disk_usage(nearest).free
    if free < LEAST_DISK_BYTES:
        advice = "Free some space, or move the folders; models take 0.1 to 40 GiB each."
        yield Finding("disk", Grade.WARNING, f"{size(free)} free in {nearest}", advice)
    else:
        yield Finding("disk", Grade.OK, f"{size(free)} free in {nearest}")


def _machine(machine: Machine, settings: Settings) -> Iterator[Finding]:
    limits = limits_from(settings, machine)
    yield Finding(
        "memory",
        Grade.OK,
        f"{size(machine.ram_available_bytes)} of {size(machine.ram_total_bytes)} available, "
        f"{size(limits.ram_reserve_bytes)} kept for the desktop",
    )
    swap = (
        f"{size(machine.swap_total_bytes)}, never counted" if machine.swap_total_bytes else "none"
    )
    yield Finding("swap", Grade.OK, swap)
    yield Finding(
        "processor", Grade.OK, f"{machine.physical_cores} cores ({machine.logical_cores} threads)"
    )
    for gpu in machine.gpus:
        text = f"{gpu.name}: {size(gpu.free_bytes)} of {size(gpu.total_bytes)} free"
        if gpu.driver:
            text += f", driver {gpu.driver}"
        if gpu.is_usable:
            yield Finding(gpu.device, Grade.OK, text)
        else:
            yield Finding(
                gpu.device,
                Grade.WARNING,
                f"{text}; idle, as {gpu.reason}",
                "Install a build for it, or models run on the processor alone.",
            )
    if not machine.gpus:
        yield Finding("gpu", Grade.NOTE, "none was found; models run on the processor")
    for problem in machine.problems:
        yield Finding("devices", Grade.WARNING, problem)


def _gone(machine: Machine, paths: Paths) -> Iterator[Finding]:
    sentence = missing_sentence(missing_gpus(paths, machine, counts_idle=True))
    if sentence:
        advice = "Or go on without it: coolhead load MODEL, or coolhead safe-mode leave."
        yield Finding("gpu", Grade.WARNING, sentence, advice)


def _engines(machine: Machine, settings: Settings, paths: Paths) -> Iterator[Finding]:
    infos = LlamaCppBackend(lambda: settings, engines_folder=paths.engines).engines()
    for info in (*infos, *MlxBackend(engines_folder=paths.engines).engines()):
        if info.usable:
            text = f"{info.version} on {', '.join(info.devices) or 'the processor'}"
            yield Finding(f"engine {info.name}", Grade.OK, text)
        else:
            yield Finding(f"engine {info.name}", Grade.NOTE, f"not usable: {info.reason}")
    gpus = [gpu.name for gpu in machine.gpus]
    choice = choose_engine(infos, settings.engine.engine, gpus)
    if choice.engine is None:
        advice = (
            "Install one: coolhead engine install cpu, or coolhead settings set engine.engine auto"
        )
        yield Finding("engine", Grade.BLOCKS, choice.reason, advice)
    elif choice.warning:
        yield Finding("engine", Grade.WARNING, choice.reason, choice.warning)
    else:
        yield Finding("engine", Grade.OK, f"GGUF models run on {choice.reason}")


def _cap(running: RunningApp | None) -> Iterator[Finding]:
    try:
        if running is not None:
            status = running.call("GET", "/admin/status")
            kind, tried = CapKind(status["cap_kind"]), list(status.get("cap_tried", []))
        else:
            kind, tried = asyncio.run(_ask_a_guard())
    except CoolheadError as error:
        yield Finding(
            "kernel cap", Grade.BLOCKS, error.message, "Without a guard nothing is loaded."
        )
        return
    if kind is CapKind.WATCH_ONLY:
        yield Finding(
            "kernel cap",
            Grade.WARNING,
            "no kernel limit can be set here; the guard watches and stops workers itself.",
            "On Linux, log in through systemd, so that there is a user manager with cgroup v2.",
        )
    else:
        yield Finding("kernel cap", Grade.OK, kind.value)
    for reason in tried:
        yield Finding("kernel cap", Grade.NOTE, f"tried before: {reason}")


async def _ask_a_guard() -> tuple[CapKind, list[str]]:
    guard = GuardClient(lambda _message: None, lambda _reason: None)
    try:
        ready = await guard.start()
    finally:
        with contextlib.suppress(CoolheadError):
            await guard.stop()
    return ready.cap_kind, ready.tried


def _port(running: RunningApp | None, settings: Settings) -> Finding:
    if running is not None:
        text = f"Coolhead (process {running.pid}) serves at http://{running.host}:{running.port}/v1"
        return Finding("port", Grade.OK, text)
    port = settings.server.port
    if port == 0:
        return Finding("port", Grade.OK, "any free one is taken")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.server.listen, port))
        except OSError as error:
            holder = holder_of(port) or str(error.strerror)
            return Finding(
                "port",
                Grade.BLOCKS,
                f"{port} cannot be opened: {holder}",
                "Stop that program, or: coolhead settings set server.port auto",
            )
    return Finding("port", Grade.OK, f"{port} is free")


def _tray() -> Finding:
    from app.core.hardware.display import display_available
    from app.core.hardware.tray_host import has_tray_host

    problem = display_available()
    if problem is None:
        if has_tray_host():
            return Finding("tray", Grade.OK, "the desktop has a place for icons")
        return Finding(
            "tray",
            Grade.NOTE,
            "a display can be reached, but its desktop has no place for icons; a small window stands in",
        )
    return Finding("tray", Grade.NOTE, f"{problem} Coolhead serves without one.")


def _models(paths: Paths, settings: Settings) -> Iterator[Finding]:
    folders = [Path(part) for part in settings.model.folders.split(os.pathsep) if part]
    library = ModelLibrary(paths, folders)
    specs = library.specs()
    for spec in specs:
        yield Finding("model", Grade.OK, f"{spec.model_id} ({size(spec.size_bytes)})")
    for damaged in library.damaged():
        yield Finding(
            "model", Grade.WARNING, f"{damaged.path}: {damaged.error.message}", "Fetch it again."
        )
    if not specs:
        yield Finding(
            "model",
            Grade.NOTE,
            f"none is installed; `coolhead ask` fetches a starter model of {size(starter().size_bytes)}",
        )
