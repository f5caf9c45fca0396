"""What a preset made of a model and a machine: the figures, and why each of them. Pure data."""

from dataclasses import dataclass

from app.core.models.load_settings import LoadSettings


@dataclass(frozen=True, slots=True)
class Choice:
    """How a model is to be loaded.

    Attributes:
        load: the figures, given to plan, dry run and engine alike.
        reasons: one sentence for each figure that was chosen, for people.
        gpus: the devices that `load` counts on, in order; the `gpus` of `plan_memory`.
        warnings: what the user should know before it is loaded, such as a slow processor.
    """

    load: LoadSettings
    reasons: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Proposal:
    """What would fit instead of what was asked.

    Attributes:
        load: the figures that fit, of this very file.
        changes: setting keys and values that lead to `load`, for a button or the command line.
        quantization: the next smaller one that fits with what was asked; empty if none was found.
        needed_bytes: what `load` takes, on the device where it is tightest.
        sentence: the ways out, in words.
    """

    load: LoadSettings
    changes: tuple[tuple[str, int | str], ...]
    quantization: str
    needed_bytes: int
    sentence: str
