"""How the client asks for a guard, as one JSON argument. Pure.

The defaults are what runs on a user's machine; tests and benchmarks change them.
"""

import msgspec

from app.core.lifecycle import CapKind
from app.guard.lines import MIB, Lines


class GuardOptions(msgspec.Struct, frozen=True):
    """What a guard may do and by which lines it decides.

    Attributes:
        lines: the numbers of the policy.
        cap_kinds: kernel caps that may be tried, strongest first; others are passed over.
        watch: whether the guard kills by its own samples; without it only the kernel's cap holds.
        predict: whether the slope of a worker's memory is drawn out.
        nice: the workers' niceness.
        kernel_above_bytes: how far the kernel's line lies above the guard's.
    """

    lines: Lines = msgspec.field(default_factory=Lines)
    cap_kinds: list[CapKind] = msgspec.field(default_factory=lambda: list(CapKind))
    watch: bool = True
    predict: bool = True
    nice: int = 10
    kernel_above_bytes: int = 512 * MIB


def encode_options(options: GuardOptions) -> str:
    return msgspec.json.encode(options).decode()


def decode_options(text: str) -> GuardOptions:
    """Raises: msgspec.ValidationError for anything else."""
    return msgspec.json.decode(text, type=GuardOptions)


def for_system(options: GuardOptions, platform: str) -> GuardOptions:
    """What differs by system: on macOS a footprint needs up to half a second to fall after a release."""
    if platform != "darwin":
        return options
    lines = msgspec.structs.replace(options.lines, cancel_deadline_s=1.0, settle_s=1.0)
    return msgspec.structs.replace(options, lines=lines)
