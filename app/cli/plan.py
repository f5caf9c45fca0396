"""`coolhead plan MODEL`: what a load would take, drawn to scale, and whether it fits.

Loads nothing. `--gpu-mem` and `--ram` plan for another, otherwise idle machine; a name of the
catalogue is planned before it is fetched.
"""

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from app.cli.plan_text import plan_lines
from app.core.errors import ModelUnknown
from app.core.hardware.machine import Machine, imagined_machine
from app.core.hardware.probe import probe_machine
from app.core.models.catalogue import CatalogueEntry, catalogue
from app.core.models.choice import Choice, Proposal
from app.core.models.fit import Fit, Limits, judge, judge_all, limits_from, propose
from app.core.models.library import ModelLibrary, open_model
from app.core.models.outline import ESTIMATE_MARGIN_PERCENT, can_outline, outlined
from app.core.models.plan import MemoryPlan, plan_memory
from app.core.models.presets import choose
from app.core.models.spec import ModelSpec
from app.core.paths import Paths, user_paths
from app.core.settings import Settings
from app.core.settings_file import SettingsFile
from app.core.settings_meta import MIB, parse_size

EXIT_DOES_NOT_FIT = 3
LEAST_MEMORY_BYTES = 64 * MIB
"""Nobody has less: who says `8` means 8 GiB."""

PLACEMENTS = ("auto", "gpu_only", "may_use_ram", "cpu_only")


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """All that the table and the JSON are made of; `entry` of a model that is not here yet."""

    spec: ModelSpec
    machine: Machine
    limits: Limits
    choice: Choice
    plan: MemoryPlan
    fits: tuple[Fit, ...]
    verdict: Fit
    proposal: Proposal | None
    entry: CatalogueEntry | None = None


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "plan",
        help="what a model would take, and whether it fits",
        epilog="Exit status: 0 it fits, 3 it does not, 1 the model cannot be read.",
    )
    parser.add_argument(
        "model", help="a model's id, the path of a GGUF file, or a name of `coolhead models list`"
    )
    parser.add_argument("--ctx", type=int, metavar="N", help="tokens for each slot")
    parser.add_argument("--slots", type=int, metavar="N", help="requests answered at once")
    parser.add_argument("--kv", choices=("f16", "q8_0", "q4_0"), help="type of the KV cache")
    parser.add_argument("--mood", choices=("quiet", "balanced", "full"))
    parser.add_argument("--placement", choices=PLACEMENTS, help="whether layers may go to RAM")
    parser.add_argument(
        "--gpu-mem",
        type=_sizes,
        metavar="SIZE,...",
        help="memory of each GPU of another, idle machine, as in 24G or 8GiB,8GiB; 0 for none",
    )
    parser.add_argument(
        "--ram", type=_size, metavar="SIZE", help="RAM of another, idle machine, as in 64G"
    )
    parser.add_argument(
        "--exact",
        action="store_true",
        help="ask the engine's own dry run (a second or so); not for GPUs of another machine",
    )
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Raises: ModelUnknown, ModelFileInvalid, ModelFileMissing, SettingsInvalid."""
    paths = user_paths()
    settings = SettingsFile(paths.settings_file).load().settings
    machine, settings_used = machine_of(args), _with_flags(args, settings)
    entry, spec = _model(args.model, paths, settings)
    why_not = _why_not_exact(args, entry) if args.exact else ""
    is_exact = args.exact and not why_not
    answer = answer_for(spec, machine, settings_used, entry=entry, is_exact=is_exact, note=why_not)
    if args.json:
        print(json.dumps(as_json(answer), indent=2))
    else:
        print("\n".join(plan_lines(answer)))
    return 0 if answer.verdict.fits else EXIT_DOES_NOT_FIT


def _model(name: str, paths: Paths, settings: Settings) -> tuple[CatalogueEntry | None, ModelSpec]:
    """The model of that name; of the catalogue, with its entry, where it is not installed."""
    try:
        return None, open_model(library_of(paths, settings), name)
    except ModelUnknown as error:
        entry = next((one for one in catalogue() if one.name == name.strip().lower()), None)
        if entry is None or not can_outline(entry):
            names = ", ".join(one.name for one in catalogue() if can_outline(one))
            raise ModelUnknown(
                f"{error.message} Before a download these can be planned: {names}; of others, "
                "`coolhead presets` tells by their size.",
                model=name,
            ) from error
    if entry.file and (paths.models / entry.file).is_file():
        return None, open_model(library_of(paths, settings), str(paths.models / entry.file))
    return entry, outlined(entry)


def _why_not_exact(args: argparse.Namespace, entry: CatalogueEntry | None) -> str:
    """Why the engine's dry run has nothing to say; empty where it has."""
    if entry is not None:
        return "The engine's dry run needs the file: fetch it first."
    if args.gpu_mem:
        return (
            "The engine's dry run knows this machine's GPUs only: these are the formula's figures."
        )
    return ""


def answer_for(
    spec: ModelSpec,
    machine: Machine,
    settings: Settings,
    *,
    entry: CatalogueEntry | None = None,
    is_exact: bool = False,
    note: str = "",
) -> Answer:
    """Presets, plan, verdict and, where it does not fit, what would.

    Args:
        spec: the model, or what is known of one that is not here.
        machine: where it is to run.
        settings: the user's will.
        entry: of a model that is not here.
        is_exact: ask the engine.
        note: to be said with the plan.
    """
    limits = limits_from(settings, machine)
    choice = choose(spec, machine, settings)
    plan = plan_memory(spec, choice.load, choice.gpus)
    if is_exact and spec.format == "gguf":
        from app.core.models.dry_run import dry_run_or_formula

        plan = dry_run_or_formula(spec, choice.load, choice.gpus)
    if entry is not None:
        plan = dataclasses.replace(plan, margin_percent=ESTIMATE_MARGIN_PERCENT)
        note = f"An estimate: {spec.name} is not here yet. {note}".strip()
    if note:
        plan = dataclasses.replace(plan, note=f"{plan.note} {note}".strip())
    verdict = judge(plan, machine, limits)
    proposal = None
    if not verdict.fits:
        proposal = propose(spec, choice.load, machine, limits, choice.gpus)
    fits = judge_all(plan, machine, limits)
    return Answer(spec, machine, limits, choice, plan, fits, verdict, proposal, entry)


def library_of(paths: Paths, settings: Settings) -> ModelLibrary:
    """The models in our folder and in those of the user's."""
    folders = [Path(part) for part in settings.model.folders.split(os.pathsep) if part]
    return ModelLibrary(paths, folders)


def machine_of(args: argparse.Namespace) -> Machine:
    """This machine, or the imagined one that the flags describe."""
    here = probe_machine()
    if args.ram is None and args.gpu_mem is None:
        return here
    gpus = args.gpu_mem
    if gpus is None:
        gpus = tuple(gpu.total_bytes for gpu in here.usable_gpus if not gpu.is_integrated)
    return imagined_machine(args.ram or here.ram_total_bytes, gpus, here)


def _with_flags(args: argparse.Namespace, settings: Settings) -> Settings:
    if args.ram is not None or args.gpu_mem is not None:
        # Caps and reserves of this machine say nothing of another one.
        settings = dataclasses.replace(settings, memory=Settings().memory)
    flags = {
        "model.context_tokens": args.ctx,
        "model.slots": args.slots,
        "model.kv_type": args.kv,
        "model.mood": args.mood,
        "model.placement": args.placement,
    }
    return settings.replace({key: value for key, value in flags.items() if value is not None})


def as_json(answer: Answer) -> dict[str, Any]:
    """The answer for programs; sizes in bytes."""
    verdicts = {fit.device: fit for fit in answer.fits}
    devices = []
    for part in answer.plan.devices:
        row: dict[str, Any] = {**dataclasses.asdict(part), "total_bytes": part.total_bytes}
        fit = verdicts.get(part.device)
        if fit is not None:
            row |= {
                "needed_bytes": fit.needed_bytes,
                "available_bytes": fit.available_bytes,
                "reserve_bytes": fit.reserve_bytes,
                "cap_bytes": fit.cap_bytes,
                "fits": fit.fits,
            }
        devices.append(row)
    plan, proposal = answer.plan, answer.proposal
    return {
        "model": answer.spec.model_id,
        "path": str(answer.spec.path) if answer.entry is None else None,
        "is_installed": answer.entry is None,
        "settings": dataclasses.asdict(answer.choice.load),
        "devices": devices,
        "own_bytes": plan.own_bytes,
        "mapped_bytes": plan.mapped_bytes,
        "total_bytes": sum(part.total_bytes for part in plan.devices),
        "source": plan.source,
        "margin_percent": plan.margin_percent,
        "note": plan.note,
        "fits": answer.verdict.fits,
        "verdict": "fits" if answer.verdict.fits else "does_not_fit",
        "device": answer.verdict.device,
        "reason": answer.verdict.sentence,
        "reasons": list(answer.choice.reasons),
        "warnings": list(answer.choice.warnings),
        "proposal": None
        if proposal is None
        else {
            "settings": dataclasses.asdict(proposal.load) if proposal.changes else None,
            "changes": dict(proposal.changes),
            "quantization": proposal.quantization,
            "needed_bytes": proposal.needed_bytes,
            "sentence": proposal.sentence,
        },
    }


def _size(text: str) -> int:
    try:
        size = parse_size(text)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write it as in 8G") from error
    if size <= 0:
        raise argparse.ArgumentTypeError("it must be above 0")
    if size < LEAST_MEMORY_BYTES:
        meant = f"; write {text.strip()}G for GiB" if text.strip().isdigit() else ""
        raise argparse.ArgumentTypeError(f"{text!r} is less than 64 MiB{meant}")
    return size


def _sizes(text: str) -> tuple[int, ...]:
    if text.strip() in {"", "0"}:
        return ()
    return tuple(_size(part) for part in text.split(","))
