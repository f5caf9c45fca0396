"""Which size and quantization of a model family suits a machine, before any file is there. Pure.

Used by `coolhead presets`, by `coolhead models pull` where no quantization is named, and by the panel's
first-run page. Prices a usual model of each size (`presets.yaml`), not a file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from app.core.hardware.machine import Machine
from app.core.models.judge import RAM, judge, with_margin
from app.core.models.limits import Limits, limits_from, narrowed
from app.core.models.placement import candidate_gpus
from app.core.models.plan import DevicePlan, MemoryPlan
from app.core.models.presets_file import LadderStep, Presets, Quantization, Target, presets
from app.core.models.speed import processor_bytes_per_s, speed_text
from app.core.settings import Settings
from app.core.settings_meta import MIB

CONTEXT_STEP_TOKENS = 1024
RUNTIME_BYTES = 200 * MIB
GPU_RUNTIME_BYTES = 450 * MIB
"""The engine beside its buffers, in RAM and on a card; roughly, a file's own plan is exact."""

STEP_BUFFER_BYTES = 96 * MIB
MARGIN_PERCENT = 5.0


@dataclass(frozen=True, slots=True)
class FamilyChoice:
    """What of a family suits a machine.

    Attributes:
        size: a step of the ladder ("8B").
        device: where it runs: a GPU's name, or "RAM".
        fits: whether any quantization of it suits; if not, the other figures are empty.
        needed_bytes: where it runs; of them `kv_bytes` for the KV cache of all slots.
        reason: one sentence.
    """

    size: str
    fits: bool
    quantization: str
    device: str
    context_tokens: int
    slots: int
    needed_bytes: int
    kv_bytes: int
    reason: str


def ladder_for(machine: Machine, settings: Settings) -> tuple[FamilyChoice, ...]:
    """For each size of the ladder, what suits this machine under the mood that is set."""
    return tuple(
        choose_quantization(step.parameters, machine, settings) for step in presets().ladder
    )


def best_of(choices: Sequence[FamilyChoice]) -> FamilyChoice | None:
    """The largest size that suits; None where none does."""
    return next((choice for choice in reversed(choices) if choice.fits), None)


def oddities(choices: Sequence[FamilyChoice]) -> tuple[str, ...]:
    """Why a size needs more than a larger one, where that is so; a sentence for each."""
    steps = {step.name: step for step in presets().ladder}
    told = []
    for small, large in pairwise(choice for choice in choices if choice.fits):
        one, other = steps.get(small.size), steps.get(large.size)
        if one is None or other is None or small.needed_bytes <= large.needed_bytes:
            continue
        if one.kv_bytes_a_token > other.kv_bytes_a_token:
            told.append(
                f"{one.name} needs more than {other.name}: {one.like} keeps "
                f"{one.kv_bytes_a_token // 1024} KiB of KV cache for each token, {other.like} "
                f"{other.kv_bytes_a_token // 1024}."
            )
        else:
            told.append(
                f"{one.name} needs more than {other.name}, since there is room for {small.quantization}."
            )
    return tuple(told)


def choose_quantization(
    parameters: float, machine: Machine, settings: Settings, offered: Sequence[str] = ()
) -> FamilyChoice:
    """The quantization of a family that suits this machine.

    The usual one with the context that fits; a better one only where the mood's whole wish still fits
    beside it; a coarser one where the usual is too large.

    Args:
        parameters: of the model; priced like the nearest step of the ladder.
        machine: where it is to run.
        settings: the mood, caps and reserves.
        offered: quantizations that there are; empty for all.
    """
    return _Family(parameters, machine, settings, offered).choice()


class _Family:
    def __init__(
        self, parameters: float, machine: Machine, settings: Settings, offered: Sequence[str]
    ) -> None:
        self._file: Presets = presets()
        self._step = _nearest(self._file, parameters)
        self._parameters = parameters
        self._machine = machine
        self._threads = settings.model.threads or max(1, machine.physical_cores - 1)
        mood = self._file.moods[settings.model.mood]
        gpus = () if settings.model.placement == "cpu_only" else candidate_gpus(machine)
        self._gpus = tuple(gpu.device for gpu in gpus)
        self._target: Target = mood.gpu if gpus else mood.cpu
        self._limits: Limits = narrowed(
            limits_from(settings, machine), machine, mood.ram_share, mood.gpu_share
        )
        self._quantizations = self._worth_it(offered)

    def _worth_it(self, offered: Sequence[str]) -> list[Quantization]:
        """From the best that is worth its memory to the coarsest that is worth its name."""
        file = self._file
        is_quick = bool(self._gpus) or self._parameters <= file.cpu_small_parameters
        best = file.bits(file.best_quantization if is_quick else file.cpu_best_quantization)
        coarsest = file.bits(file.coarsest_quantization)
        names = {name.upper() for name in offered}
        return [
            each
            for each in file.quantizations
            if coarsest <= each.bits <= best and (not names or each.name in names)
        ]

    def choice(self) -> FamilyChoice:
        size = self._step.name
        if not self._gpus and self._parameters > self._file.cpu_largest_parameters:
            return _none(size, "Too slow on a processor alone.")
        if not self._quantizations:
            return _none(size, "None of the quantizations that are offered suits.")
        if not self._gpus and self._speed(self._quantizations[-1]) < self._file.least_tokens_per_s:
            words = speed_text(self._speed(self._quantizations[-1]))
            return _none(size, f"Too slow on this processor: {words}.")
        usual = self._file.bits(self._file.usual_quantization)
        for each in self._quantizations:
            if each.bits > usual and self._fits(each, self._target.context_tokens, self._slots()):
                return self._made(each, self._target.context_tokens, self._slots())
        for each in self._quantizations:
            if each.bits > usual:
                continue
            for slots in (
                self._slots() >> halvings for halvings in range(self._slots().bit_length())
            ):
                context = self._context(each, slots)
                if context:
                    return self._made(each, context, slots)
        return _none(
            size, "Its weights leave no room for a useful context beside what is kept free."
        )

    def _slots(self) -> int:
        return self._target.slots

    def _made(self, each: Quantization, context: int, slots: int) -> FamilyChoice:
        plan = self._plan(each, context, slots)
        # On cards, what they hold: RAM has the engine beside it only.
        parts = [part for part in plan.devices if (part.device == RAM) != bool(self._gpus)]
        where = " and ".join(self._gpus) if self._gpus else "the processor"
        note = "" if self._gpus else self._speed_note(each)
        of_slots = "1 slot" if slots == 1 else f"each of {slots} slots"
        reason = (
            f"{each.name} ({each.text}) on {where}, with {context:,} tokens for {of_slots}.{note}"
        )
        device = "+".join(self._gpus) or RAM
        return FamilyChoice(
            self._step.name,
            True,
            each.name,
            device,
            context,
            slots,
            sum(with_margin(part, plan.margin_percent) for part in parts),
            sum(part.kv_bytes for part in parts),
            reason,
        )

    def _speed(self, each: Quantization) -> float:
        """Tokens a second on the processor."""
        weights = self._parameters * each.bits / 8
        return 1 / (weights / processor_bytes_per_s(self._threads) + self._file.step_s)

    def _speed_note(self, each: Quantization) -> str:
        speed = self._speed(each)
        slow = ", with long waits before the first" if speed < self._file.slow_tokens_per_s else ""
        words = speed_text(speed)
        return f" {words[0].upper()}{words[1:]}{slow}."

    def _context(self, each: Quantization, slots: int) -> int:
        context = self._target.context_tokens
        while context >= self._file.good_context_tokens:
            if self._fits(each, context, slots):
                return context
            context -= CONTEXT_STEP_TOKENS
        return 0

    def _fits(self, each: Quantization, context: int, slots: int) -> bool:
        return judge(self._plan(each, context, slots), self._machine, self._limits).fits

    def _plan(self, each: Quantization, context: int, slots: int) -> MemoryPlan:
        step = self._step
        weights = int(self._parameters * each.bits / 8)
        kv = step.kv_bytes_a_token * context * slots
        batch = self._file.gpu_ubatch_tokens if self._gpus else self._file.cpu_batch_tokens
        compute = STEP_BUFFER_BYTES + step.vocabulary * 4 * batch
        if not self._gpus:
            ram = DevicePlan(RAM, weights, kv, compute, overhead_bytes=RUNTIME_BYTES)
            own = ram.total_bytes - weights
            return MemoryPlan((ram,), own, weights, "formula", MARGIN_PERCENT)
        shares = self._shares()
        parts = [
            DevicePlan(
                name,
                int(weights * share),
                int(kv * share),
                compute,
                overhead_bytes=GPU_RUNTIME_BYTES,
            )
            for name, share in shares.items()
            if share
        ]
        ram = DevicePlan(RAM, overhead_bytes=2 * RUNTIME_BYTES)
        return MemoryPlan((ram, *parts), ram.total_bytes, 0, "formula", MARGIN_PERCENT)

    def _shares(self) -> dict[str, float]:
        rooms = {}
        for name in self._gpus:
            gpu = self._machine.gpu(name)
            limit = self._limits.gpu(name)
            rooms[name] = max(0, limit.cap_bytes if gpu else 0)
        whole = sum(rooms.values()) or 1
        return {name: room / whole for name, room in rooms.items()}


def _nearest(file: Presets, parameters: float) -> LadderStep:
    return min(file.ladder, key=lambda step: abs(step.parameters - parameters))


def _none(size: str, reason: str) -> FamilyChoice:
    return FamilyChoice(size, False, "", "", 0, 0, 0, 0, reason)
