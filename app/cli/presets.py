"""`coolhead presets`: what the presets would pick on this machine, by mood and by size of model."""

import argparse
import dataclasses
import json
from typing import Any

from app.cli.plan import machine_of
from app.cli.text import size, table
from app.core.hardware.machine import Machine
from app.core.models.family import FamilyChoice, best_of, ladder_for, oddities
from app.core.models.limits import limits_from
from app.core.models.presets_file import presets
from app.core.paths import user_paths
from app.core.settings import Settings
from app.core.settings_file import SettingsFile


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser("presets", help="what the presets would pick for this machine")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(ram=None, gpu_mem=None)


def run(args: argparse.Namespace) -> int:
    settings = SettingsFile(user_paths().settings_file).load().settings
    machine = machine_of(args)
    moods = {
        mood: ladder_for(machine, settings.replace({"model.mood": mood}))
        for mood in presets().moods
    }
    if args.json:
        print(json.dumps(_as_json(machine, settings, moods), indent=2))
        return 0
    print(_machine_line(machine, settings))
    for mood, choices in moods.items():
        mark = " (set)" if mood == settings.model.mood else ""
        print(f"\n{mood}{mark}: {presets().moods[mood].text}")
        rows = [("model", "needs", "KV cache of it", ""), *(_row(choice) for choice in choices)]
        print(table(rows, indent="  "))
        for sentence in oddities(choices):
            print(f"  {sentence}")
        best = best_of(choices)
        if best is not None:
            print(f"  Suits best: {best.size} at {best.quantization}.")
    return 0


def _row(choice: FamilyChoice) -> tuple[str, str, str, str]:
    if not choice.fits:
        return (choice.size, "-", "-", choice.reason)
    return (choice.size, size(choice.needed_bytes), size(choice.kv_bytes), choice.reason)


def _machine_line(machine: Machine, settings: Settings) -> str:
    limits = limits_from(settings, machine)
    kept = size(limits.ram_reserve_bytes)
    available = size(machine.ram_available_bytes)
    parts = [
        f"RAM {size(machine.ram_total_bytes)}, {available} available, {kept} kept for the desktop"
    ]
    for gpu in machine.gpus:
        kept = size(limits.gpu(gpu.device).reserve_bytes)
        unused = "" if gpu.is_usable else f", not used: {gpu.reason}"
        parts.append(
            f"{gpu.device} {gpu.name} {size(gpu.total_bytes)}, {size(gpu.free_bytes)} free, "
            f"{kept} kept{unused}"
        )
    return "; ".join(parts) + "."


def _as_json(
    machine: Machine, settings: Settings, moods: dict[str, tuple[FamilyChoice, ...]]
) -> dict[str, Any]:
    limits = limits_from(settings, machine)
    return {
        "machine": dataclasses.asdict(machine),
        "limits": dataclasses.asdict(limits),
        "mood": settings.model.mood,
        "moods": {
            mood: {
                "text": presets().moods[mood].text,
                "choices": [dataclasses.asdict(choice) for choice in choices],
                "notes": oddities(choices),
                "best": best.size if (best := best_of(choices)) else None,
            }
            for mood, choices in moods.items()
        },
    }
