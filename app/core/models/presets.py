"""Presets: what a model file is given on this machine, and why, figure by figure. Pure.

`choose` is called by the supervisor before each load, by the panel for its reset buttons, and by
`coolhead plan`. What the user has set stands; the preset fills the rest. Called from any thread.

The order in which things are given up where memory is short: first the length of the context down to
a good one, then slots, then the precision of the KV cache, then the rest of the context. Layers go
to RAM only where the weights are too large for the GPUs (`placement.py`).
"""

import dataclasses
from dataclasses import dataclass
from typing import cast

from app.core.hardware.machine import Machine
from app.core.lines import elevated_line
from app.core.models.choice import Choice
from app.core.models.limits import limits_from, narrowed
from app.core.models.load_settings import KvType, LoadSettings
from app.core.models.placement import Placement, Probes, candidate_gpus, place
from app.core.models.plan_kv import coarser
from app.core.models.plan_weights import repacked_share
from app.core.models.presets_file import Mood, Target, presets
from app.core.models.pricing import Pricing
from app.core.models.sizes import size_text
from app.core.models.spec import ModelSpec
from app.core.models.speed import speed_text, tokens_per_s
from app.core.settings import Settings

CONTEXT_STEP_TOKENS = 1024

COPY_FROM_SHARE = 0.5
"""Of the weights laid out anew from which they are copied, not mapped. Resident were, copied and
mapped, 470 and 748 MiB of a model of 370 MiB with 85 % laid out anew, for loads of the same length;
531 and 706 of one of 430 MiB with 43 %, for a load that took 1.4 times as long."""


def choose(spec: ModelSpec, machine: Machine, settings: Settings) -> Choice:
    """The figures for a model on this machine. Never refuses: `fit.judge` does that.

    Args:
        spec: the model.
        machine: as it is now; where the model takes the place of one that is loaded, with
            `Machine.giving_back`.
        settings: the user's will; 0 and "auto" leave a figure to the preset.
    """
    return _Chooser(spec, machine, settings).choice()


@dataclass(frozen=True, slots=True)
class _Step:
    """One thing to try: slots, KV type, and the context below which it is not worth it."""

    slots: int
    kv_type: str
    least_tokens: int


class _Chooser:
    def __init__(self, spec: ModelSpec, machine: Machine, settings: Settings) -> None:
        self._spec = spec
        self._machine = machine
        self._settings = settings
        self._file = presets()
        self._mood: Mood = self._file.moods[settings.model.mood]
        self._limits = limits_from(settings, machine)
        self._trained_tokens = spec.trained_context_tokens or 1 << 30
        self._reasons: list[str] = []
        self._warnings: list[str] = []

    def choice(self) -> Choice:
        placement = self._place()
        self._reasons.append(placement.reason)
        on_gpu = bool(placement.gpus) and self._is_whole(placement)
        target = self._mood.gpu if on_gpu else self._mood.cpu
        load = self._with_batches(self._mapped_or_copied(placement), on_gpu)
        load = self._with_context(load, placement.gpus, target)
        self._explain_rest(load)
        self._warn(load, placement.gpus, on_gpu)
        return Choice(load, tuple(self._reasons), placement.gpus, tuple(self._warnings))

    def _place(self) -> Placement:
        """Layers placed beside the least that would do, or beside what the user insists on."""
        model, file = self._settings.model, self._file
        may_spill = model.placement == "may_use_ram"
        # A set context or slot count must not push a model off the GPU unasked: the plan refuses
        # it instead, and proposes. Only who allows RAM gets layers moved for it.
        useful = min(file.least_context_tokens, self._trained_tokens)
        good = min(file.good_context_tokens, self._trained_tokens)
        least = self._probe(useful, 1)
        if model.kv_type == "auto":
            least = coarser(self._spec.shape, least) or least
        wanted = self._probe(
            model.context_tokens or min(self._mood.gpu.context_tokens, self._trained_tokens),
            model.slots or self._mood.gpu.slots,
        )
        split = self._probe(
            model.context_tokens or min(self._mood.cpu.context_tokens, self._trained_tokens),
            model.slots or 1,
        )
        if may_spill:
            least = self._probe(model.context_tokens or good, model.slots or 1)
        placed = place(
            self._spec,
            self._machine,
            self._limits,
            Probes(wanted, least, split),
            model.placement,
            model.spill_limit_bytes,
        )
        kv = self._base()
        load = dataclasses.replace(placed.load, kv_type_k=kv.kv_type_k, kv_type_v=kv.kv_type_v)
        return dataclasses.replace(placed, load=load)

    def _probe(self, context_tokens: int, slots: int) -> LoadSettings:
        load = dataclasses.replace(self._base(), context_tokens=context_tokens, slots=slots)
        return self._with_batches(load, bool(candidate_gpus(self._machine)))

    def _base(self) -> LoadSettings:
        model, memory = self._settings.model, self._settings.memory
        load = LoadSettings(
            threads=model.threads or max(1, self._machine.physical_cores - 1),
            prompt_cache_bytes=memory.prompt_cache_bytes,
            checkpoints=self._file.checkpoints if _needs_checkpoints(self._spec) else 0,
            mmap=self._settings.engine.mmap,
        )
        return load if model.kv_type == "auto" else _with_kv(load, model.kv_type)

    def _mapped_or_copied(self, placement: Placement) -> LoadSettings:
        """Copies what would lie in memory twice if it were mapped."""
        load, shape = placement.load, self._spec.shape
        if placement.gpus or not load.mmap or shape is None:
            return load
        share = repacked_share(shape)
        if share < COPY_FROM_SHARE:
            return load
        self._reasons.append(
            f"Weights are copied, not mapped: the engine lays {share:.0%} of them out anew for this "
            "processor, and a map would keep those in memory twice."
        )
        return dataclasses.replace(load, mmap=False)

    def _is_whole(self, placement: Placement) -> bool:
        return placement.load.gpu_layers > self._spec.layers and not placement.is_split

    def _with_batches(self, load: LoadSettings, on_gpu: bool) -> LoadSettings:
        if on_gpu:
            return dataclasses.replace(
                load,
                batch_tokens=self._file.gpu_batch_tokens,
                ubatch_tokens=self._file.gpu_ubatch_tokens,
            )
        size = self._file.cpu_batch_tokens
        return dataclasses.replace(load, batch_tokens=size, ubatch_tokens=size)

    def _with_context(
        self, load: LoadSettings, gpus: tuple[str, ...], target: Target
    ) -> LoadSettings:
        mood = self._mood
        wide = Pricing(self._spec, self._machine, self._limits, gpus)
        narrow = dataclasses.replace(
            wide, limits=narrowed(self._limits, self._machine, mood.ram_share, mood.gpu_share)
        )
        most = self._settings.model.context_tokens or min(
            target.context_tokens, self._trained_tokens
        )
        good, least = self._good_steps(target), self._least_steps(target)
        # The mood's share bounds what is comfortable; before less than a good context is given,
        # all that the reserves leave may be used.
        last = [step for step in good if step.slots == good[-1].slots]
        for pricing, steps in ((narrow, good), (wide, last), (narrow, least), (wide, least)):
            for step in steps:
                tried = dataclasses.replace(_with_kv(load, step.kv_type), slots=step.slots)
                context = self._context(pricing, tried, most, step.least_tokens)
                if context:
                    found = dataclasses.replace(tried, context_tokens=context)
                    self._explain_context(found, target, pricing, is_wide=pricing is wide)
                    return found
        return self._nothing_fits(load, target, most)

    def _context(self, pricing: Pricing, load: LoadSettings, most: int, least: int) -> int:
        """The longest context that fits, at least `least`; the set one or none; 0 for none."""
        if self._settings.model.context_tokens:
            return most if pricing.fits(dataclasses.replace(load, context_tokens=most)) else 0
        return pricing.largest_context(load, most, min(least, most), CONTEXT_STEP_TOKENS)

    def _good_steps(self, target: Target) -> list[_Step]:
        """What is tried in turn; with what the user has set, there is less to try."""
        model, good = self._settings.model, self._file.good_context_tokens
        slots = (model.slots,) if model.slots else _halved(target.slots)
        steps = [_Step(count, self._base().kv_type_k, good) for count in slots]
        if self._may_coarsen():
            steps.append(_Step(slots[-1], "q8_0", good))
        return steps

    def _least_steps(self, target: Target) -> list[_Step]:
        last = self._good_steps(target)[-1]
        return [dataclasses.replace(last, least_tokens=self._file.least_context_tokens)]

    def _may_coarsen(self) -> bool:
        """Whether a coarser KV type is ours to choose, and one that the engine can keep.

        Not where the user has set all that it is for.
        """
        model = self._settings.model
        if model.kv_type != "auto" or (model.context_tokens and model.slots):
            return False
        return coarser(self._spec.shape, self._base()) is not None

    def _nothing_fits(self, load: LoadSettings, target: Target, most: int) -> LoadSettings:
        """What was asked, or the least that is useful: the plan will refuse it, with the sum."""
        model, file = self._settings.model, self._file
        asked = bool(model.context_tokens or model.slots)
        found = dataclasses.replace(
            load,
            slots=model.slots or (target.slots if asked else 1),
            context_tokens=model.context_tokens
            or min(file.good_context_tokens if asked else file.least_context_tokens, most),
        )
        if self._may_coarsen() and not asked:
            found = _with_kv(found, "q8_0")
        what = (
            "as set, which does not fit" if asked else "even the least that is useful is too much"
        )
        self._reasons.append(f"{_in_words(found)}: {what}.")
        return found

    def _explain_context(
        self, load: LoadSettings, target: Target, pricing: Pricing, *, is_wide: bool
    ) -> None:
        model = self._settings.model
        mood = f"the {model.mood} mood"
        took = self._took(load, pricing, is_wide=is_wide)
        if model.context_tokens:
            why = f"{'as set' if model.slots else 'the length as set'}; it fits: {took}"
        elif load.context_tokens == target.context_tokens:
            why = f"what {mood} asks for" if not model.slots else f"the length of {mood}"
        elif load.context_tokens == self._spec.trained_context_tokens:
            why = "what the model was trained for"
        else:
            why = f"the most that fits{' at all' if is_wide else f' {mood}'}: {took}"
        if model.slots and not model.context_tokens:
            why += f"; {load.slots} {'slot' if load.slots == 1 else 'slots'} as set"
        self._reasons.append(f"{_in_words(load)}: {why}.")
        if not model.slots and load.slots < target.slots:
            self._reasons.append(
                f"{load.slots} of {target.slots} slots, so that a conversation keeps a useful length."
            )
        if model.kv_type == "auto":
            self._reasons.append(
                "KV cache in f16: there is room for it."
                if load.kv_type_k == "f16"
                else "KV cache in q8_0: half the memory of f16 at a loss that is hardly noticed."
            )
        else:
            self._reasons.append(f"KV cache in {load.kv_type_k}, as set.")

    def _took(self, load: LoadSettings, pricing: Pricing, *, is_wide: bool) -> str:
        """The sum where it is tightest, and where its bound comes from."""
        fit = pricing.fit(load)
        needed, cap = size_text(fit.needed_bytes), size_text(fit.cap_bytes)
        if is_wide:
            return f"{needed} of the {cap} that models may take of {fit.device}"
        whole = dataclasses.replace(pricing, limits=self._limits).fit(load)
        if whole.device != fit.device or whole.cap_bytes == fit.cap_bytes:
            return f"{needed} of the {cap} that models may take of {fit.device}"
        return (
            f"{needed}; of the {size_text(whole.cap_bytes)} that models may take of {fit.device} the "
            f"{self._settings.model.mood} mood uses up to {cap}"
        )

    def _explain_rest(self, load: LoadSettings) -> None:
        model, cores = self._settings.model, self._machine.physical_cores
        if model.threads:
            self._reasons.append(f"{load.threads} threads, as set.")
        else:
            what = "thread" if load.threads == 1 else "threads"
            left = "one is left to the desktop" if cores > 1 else "there is no other"
            self._reasons.append(f"{load.threads} {what} of {cores} physical cores: {left}.")
        self._reasons.append(
            f"A prompt cache of {size_text(load.prompt_cache_bytes)}, as set."
            if load.prompt_cache_bytes
            else "No prompt cache beside the slots: each slot keeps its own last prompt."
        )
        if load.checkpoints:
            self._reasons.append(
                f"{load.checkpoints} checkpoints for each slot: this model's cache cannot be wound "
                "back without them."
            )

    def _warn(self, load: LoadSettings, gpus: tuple[str, ...], on_gpu: bool) -> None:
        spec, file = self._spec, self._file
        if spec.trained_context_tokens and load.context_tokens > spec.trained_context_tokens:
            self._warnings.append(
                f"The model was trained for {spec.trained_context_tokens:,} tokens; beyond them its "
                "answers get worse."
            )
        reserve, total = self._limits.ram_reserve_bytes, self._machine.ram_total_bytes
        if self._settings.memory.ram_reserve_bytes and reserve < elevated_line(total):
            self._warnings.append(
                f"The desktop reserve that you set, {size_text(reserve)}, is less than the "
                f"{size_text(elevated_line(total))} below which the guard unloads idle models: what "
                "just fits is soon unloaded."
            )
        if on_gpu:
            return
        pricing = Pricing(spec, self._machine, self._limits, gpus)
        speed = tokens_per_s(spec, pricing.plan(load), self._machine, load.threads)
        is_slow = speed < file.slow_tokens_per_s
        if speed and (gpus or is_slow or spec.parameters > file.cpu_largest_parameters):
            where = "partly on the processor" if gpus else "on the processor"
            waits = ", and long waits before the first" if is_slow else ""
            self._warnings.append(f"It runs {where}: expect {speed_text(speed)}{waits}.")


def _in_words(load: LoadSettings) -> str:
    slots = "1 slot" if load.slots == 1 else f"each of {load.slots} slots"
    return f"{load.context_tokens:,} tokens for {slots}"


def _with_kv(load: LoadSettings, kv_type: str) -> LoadSettings:
    kind = cast("KvType", kv_type)
    return dataclasses.replace(load, kv_type_k=kind, kv_type_v=kind)


def _halved(slots: int) -> tuple[int, ...]:
    found = [slots]
    while found[-1] > 1:
        found.append(found[-1] // 2)
    return tuple(found)


def _needs_checkpoints(spec: ModelSpec) -> bool:
    """Sliding-window and recurrent layers forget what a longer context has pushed out."""
    if spec.header is None:
        return False
    keys = ("attention.sliding_window", "ssm.state_size", "ssm.conv_kernel", "wkv.head_size")
    return any(spec.header.integer(f"{spec.architecture}.{key}") for key in keys)
