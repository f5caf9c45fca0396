"""What follows when workers of one model end badly: a pause, a smaller restart, or a stop. Pure.

Asked by the supervisor before each load. After a kill for memory the next worker of the model is one
step smaller; after the second within ten minutes smaller again; after the third nothing is loaded
until the user asks for it. Crashes make nothing smaller: after a row of them there is a pause.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from app.core.lifecycle import ExitCause
from app.core.models.load_settings import KvType, LoadSettings

KILL_WINDOW_S = 600.0
MOST_KILLS = 3
COOL_DOWN_S = 10.0
CRASH_WINDOW_S = 120.0
MOST_CRASHES = 3
CRASH_PAUSE_S = 30.0
LEAST_CONTEXT_TOKENS = 512
_WIDE_KV: frozenset[KvType] = frozenset({"f32", "f16", "bf16"})


@dataclass(frozen=True, slots=True)
class Pause:
    """Why no worker is started now. `retry_after_s` is 0 where time alone changes nothing."""

    cause: ExitCause
    sentence: str
    retry_after_s: float

    @property
    def needs_user(self) -> bool:
        return self.retry_after_s <= 0


@dataclass(slots=True)
class Recovery:
    """The record of one model. Its one writer is the supervisor; times are monotonic seconds."""

    kills_s: list[float] = field(default_factory=list)
    crashes_s: list[float] = field(default_factory=list)
    steps: int = 0
    last_cause: ExitCause = ExitCause.UNKNOWN
    last_sentence: str = ""

    def note_end(self, cause: ExitCause, sentence: str, now: float) -> None:
        """A worker of the model ended, or could not start."""
        if cause.is_wanted or cause is ExitCause.GUARD_LOST:
            return
        self.last_cause = cause
        self.last_sentence = sentence
        if cause.is_memory:
            self.kills_s = [at for at in self.kills_s if now - at < KILL_WINDOW_S]
            self.kills_s.append(now)
            self.steps = max(self.steps + 1, len(self.kills_s))
        else:
            self.crashes_s = [at for at in self.crashes_s if now - at < CRASH_WINDOW_S]
            self.crashes_s.append(now)

    def note_use(self) -> None:
        """A worker has answered a request properly: a row of crashes is over."""
        self.crashes_s.clear()

    def forgive(self) -> None:
        """The user asks for the model again: the record starts anew, at full size."""
        self.kills_s.clear()
        self.crashes_s.clear()
        self.steps = 0

    def pause(self, now: float) -> Pause | None:
        """Why no worker is to be started at `now`; None when one may be."""
        kills = [at for at in self.kills_s if now - at < KILL_WINDOW_S]
        if len(kills) >= MOST_KILLS:
            return Pause(
                self.last_cause,
                f"Stopped for memory {len(kills)} times within {KILL_WINDOW_S / 60:.0f} minutes, "
                f"at last: {self.last_sentence} It stays unloaded until you load it yourself; a "
                "smaller context length, fewer slots or a smaller model would help.",
                0.0,
            )
        if kills and now - kills[-1] < COOL_DOWN_S:
            return Pause(
                self.last_cause,
                f"Cooling down: {self.last_sentence} A smaller one is started next.",
                COOL_DOWN_S - (now - kills[-1]),
            )
        crashes = [at for at in self.crashes_s if now - at < CRASH_WINDOW_S]
        if len(crashes) >= MOST_CRASHES and now - crashes[-1] < CRASH_PAUSE_S:
            return Pause(
                self.last_cause,
                f"The engine failed {len(crashes)} times in a row, at last: {self.last_sentence}",
                CRASH_PAUSE_S - (now - crashes[-1]),
            )
        return None


def smaller(load: LoadSettings, steps: int) -> LoadSettings:
    """`load` made smaller by so many steps; the same where there is nothing left to take.

    First: half the context, no prompt cache, no checkpoints. Second: half of it again, KV cache in
    q8_0, half the slots. Each: a quarter of the layers off the GPU, where there are any.
    """
    for step in range(min(steps, MOST_KILLS)):
        changes: dict[str, Any] = {
            "context_tokens": min(
                load.context_tokens, max(LEAST_CONTEXT_TOKENS, load.context_tokens // 2)
            ),
            "prompt_cache_bytes": 0,
            "checkpoints": 0,
            "gpu_layers": load.gpu_layers * 3 // 4,
        }
        if step >= 1:
            changes["slots"] = max(1, load.slots // 2)
            changes["kv_type_k"] = "q8_0" if load.kv_type_k in _WIDE_KV else load.kv_type_k
            if load.flash_attention and load.kv_type_v in _WIDE_KV:
                changes["kv_type_v"] = "q8_0"  # without flash attention V cannot be quantised
        load = dataclasses.replace(load, **changes)
    return load
