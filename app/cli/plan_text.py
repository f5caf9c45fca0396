"""A memory plan as a table and as bars drawn to scale, for a terminal. Pure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.cli.text import size, table
from app.core.models.judge import RAM, Fit
from app.core.models.plan import DevicePlan

if TYPE_CHECKING:
    from app.cli.plan import Answer

WIDTH = 60
PARTS = (
    ("weights", "#", "weights_bytes"),
    ("KV cache", "=", "kv_bytes"),
    ("compute", "+", "compute_bytes"),
    ("output", "+", "output_bytes"),
    ("caches", "~", "cache_bytes"),
    ("engine", "*", "overhead_bytes"),
)


def plan_lines(answer: "Answer") -> list[str]:
    """What `coolhead plan` prints."""
    spec, load = answer.spec, answer.choice.load
    about = "about " if answer.entry is not None else ""
    head = (
        f"{spec.model_id}: {spec.architecture} {spec.quantization}, {about}{size(spec.size_bytes)}, "
        f"{load.slots} x {load.context_tokens:,} tokens, KV {load.kv_type_k}"
    )
    lines = [
        head,
        "",
        table(_rows(answer)),
        "",
        *_bars(answer),
        "",
        _source(answer),
    ]
    lines += [f"- {reason}" for reason in answer.choice.reasons]
    lines += [f"! {warning}" for warning in answer.choice.warnings]
    verdict = "It fits." if answer.verdict.fits else "It does not fit."
    lines += ["", f"{verdict} {answer.verdict.sentence}"]
    if not answer.verdict.fits:
        lines.append(
            answer.proposal.sentence if answer.proposal else "Nothing smaller of this file fits."
        )
    if answer.entry is not None:
        lines.append(f"`coolhead models pull {answer.entry.name}` fetches it.")
    return lines


def _rows(answer: "Answer") -> list[list[str]]:
    verdicts = {fit.device: fit for fit in answer.fits}
    rows = [["", *(name for name, _, _ in PARTS), "total", "may take", ""]]
    for part in answer.plan.devices:
        fit = verdicts.get(part.device)
        cells = [size(getattr(part, field)) for _, _, field in PARTS]
        may_take = size(fit.cap_bytes) if fit and fit.cap_bytes else "nothing" if fit else "-"
        word = "" if fit is None or fit.fits else "too much"
        rows.append([part.device, *cells, size(part.total_bytes), may_take, word])
    return rows


def _bars(answer: "Answer") -> list[str]:
    lines = []
    for part in answer.plan.devices:
        fit = next((fit for fit in answer.fits if fit.device == part.device), None)
        if fit is None:
            continue
        gpu = answer.machine.gpu(part.device)
        if part.device == RAM:
            total, free = answer.machine.ram_total_bytes, answer.machine.ram_available_bytes
        elif gpu is not None:
            total, free = gpu.total_bytes, gpu.free_bytes
        else:
            continue
        lines.append(f"{part.device:<8} [{bar(part, fit, total, free)}] {size(total)}")
    legend = "  ".join(f"{mark} {name}" for name, mark in _legend())
    return [*lines, f"         {legend}"]


def bar(part: DevicePlan, fit: Fit, total_bytes: int, free_bytes: int) -> str:
    """One memory to scale: others' use, the plan's parts, what is free, the reserve.

    A plan that is too large runs out of the right end and is cut there with ">".
    """
    pieces = [("x", total_bytes - free_bytes)]
    pieces += [(mark, getattr(part, field)) for _, mark, field in PARTS]
    planned = sum(bytes_ for _, bytes_ in pieces)
    kept = min(fit.reserve_bytes, max(0, total_bytes - planned))
    pieces += [(".", max(0, total_bytes - planned - kept)), ("-", kept)]
    drawn, end = "", 0.0
    for mark, bytes_ in pieces:
        end += bytes_ * WIDTH / max(1, total_bytes)
        drawn += mark * max(0, round(end) - len(drawn))
    return drawn[: WIDTH - 1] + ">" if len(drawn) > WIDTH else drawn.ljust(WIDTH, ".")


def _legend() -> Sequence[tuple[str, str]]:
    return (
        ("in use now", "x"),
        ("weights", "#"),
        ("KV cache", "="),
        ("compute", "+"),
        ("prompt cache, checkpoints", "~"),
        ("engine", "*"),
        ("free", "."),
        ("reserve", "-"),
    )


def _source(answer: "Answer") -> str:
    plan = answer.plan
    source = {
        "formula": "Priced by formula",
        "dry_run": "Priced by the engine's dry run",
        "engine": "Priced by the engine",
    }[plan.source]
    margin = f", at most {plan.margin_percent:g} % off" if plan.margin_percent else ""
    note = f" {plan.note}" if plan.note else ""
    return f"{source}{margin}.{note}"
