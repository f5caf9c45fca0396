"""The user's will, typed: every setting with its unit, range and words; pages and docs draw on it.

What happened (not what is wanted) lives in the state folder and is none of this file's business.
Thread: `Settings` is immutable and shared freely; `settings_file.py` reads and writes it.
"""

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast, get_args, get_origin, get_type_hints

from app.core.errors import SettingsInvalid
from app.core.settings_meta import GIB, MIB, Description, Needs
from app.core.settings_meta import setting as _setting


@dataclass(frozen=True, slots=True)
class ServerSettings:
    listen: Literal["127.0.0.1", "::1", "localhost"] = _setting(
        "127.0.0.1",
        "Listen address",
        "The loopback address of the endpoint; localhost opens both of them.",
        page="Endpoint",
        needs=Needs.RESTART,
        refusal="since anyone who reaches another address could use the models",
    )
    port: int = _setting(
        8555,
        "Port",
        "The endpoint's port; 0 takes any free one.",
        minimum=0,
        maximum=65535,
        page="Endpoint",
        needs=Needs.RESTART,
        zero_means="auto",
    )
    api_key: str = _setting(
        "",
        "API key",
        "Asked of every client when set; empty asks for none.",
        page="Endpoint",
    )
    allowed_origins: str = _setting(
        "",
        "Allowed web origins",
        "Exact origins of web pages that may call the endpoint, separated by spaces.",
        page="Endpoint",
    )
    max_body_bytes: int = _setting(
        64 * MIB,
        "Largest request",
        "A larger request body is refused with 413.",
        unit="bytes",
        minimum=64 * 1024,
        maximum=GIB,
        step=MIB,
        page="Endpoint",
    )
    max_connections: int = _setting(
        256,
        "Connections",
        "How many clients may be connected at once.",
        minimum=8,
        maximum=4096,
        page="Endpoint",
    )


@dataclass(frozen=True, slots=True)
class ModelSettings:
    default: str = _setting(
        "",
        "Default model",
        "The model that `auto` means; empty takes the first installed one.",
        page="Memory",
    )
    mood: Literal["quiet", "balanced", "full"] = _setting(
        "balanced",
        "Mood",
        "How much of the machine models may take: quiet leaves most to the desktop.",
        page="Memory",
        needs=Needs.RELOAD,
    )
    context_tokens: int = _setting(
        0,
        "Context length",
        "Tokens that one conversation may hold, for each slot.",
        unit="tokens",
        minimum=0,
        maximum=1_048_576,
        step=512,
        page="Memory",
        needs=Needs.RELOAD,
        zero_means="by preset",
    )
    slots: int = _setting(
        0,
        "Slots",
        "Requests that are answered at the same time.",
        minimum=0,
        maximum=64,
        page="Memory",
        needs=Needs.RELOAD,
        zero_means="by preset",
    )
    kv_type: Literal["auto", "f16", "q8_0", "q4_0"] = _setting(
        "auto",
        "KV cache type",
        "Precision of the KV cache: q8_0 takes about half of f16, q4_0 about a quarter.",
        page="Memory",
        needs=Needs.RELOAD,
    )
    threads: int = _setting(
        0,
        "Threads",
        "Processor cores that the engine may use.",
        minimum=0,
        maximum=256,
        page="Memory",
        needs=Needs.RELOAD,
        zero_means="physical cores less one",
    )
    placement: Literal["auto", "gpu_only", "may_use_ram", "cpu_only"] = _setting(
        "auto",
        "GPU placement",
        "Whether layers may be put into RAM where the GPU is too small.",
        page="Memory",
        needs=Needs.RELOAD,
    )
    spill_limit_bytes: int = _setting(
        0,
        "RAM for layers",
        "How much RAM layers may take when the GPU is too small.",
        unit="bytes",
        minimum=0,
        maximum=1024 * GIB,
        step=256 * MIB,
        page="Memory",
        needs=Needs.RELOAD,
        zero_means="whatever fits",
    )
    idle_timeout_s: float = _setting(
        900.0,
        "Unload when idle",
        "A model without requests for this long is unloaded.",
        unit="s",
        minimum=0,
        maximum=604_800,
        step=60,
        page="Models",
        zero_means="never",
    )
    folders: str = _setting(
        "",
        "Model folders",
        "More folders to look for GGUF files in, separated by the system's path separator.",
        page="Models",
    )


@dataclass(frozen=True, slots=True)
class MemorySettings:
    ram_cap_bytes: int = _setting(
        0,
        "RAM cap",
        "All workers together take no more RAM than this.",
        unit="bytes",
        minimum=0,
        maximum=1024 * GIB,
        step=256 * MIB,
        page="Memory",
        needs=Needs.RELOAD,
        zero_means="whatever the reserve leaves",
    )
    ram_reserve_bytes: int = _setting(
        0,
        "Desktop reserve",
        "RAM that is always left to the desktop.",
        unit="bytes",
        minimum=0,
        maximum=256 * GIB,
        step=256 * MIB,
        page="Memory",
        needs=Needs.RELOAD,
        zero_means="15 % of RAM, 1.9 to 6 GiB",
    )
    prompt_cache_bytes: int = _setting(
        0,
        "Prompt cache",
        "RAM in which a worker keeps prompts that it has already read.",
        unit="bytes",
        minimum=0,
        maximum=16 * GIB,
        step=64 * MIB,
        page="Memory",
        needs=Needs.RELOAD,
        zero_means="none",
    )
    gpu_caps_bytes: dict[str, int] = _setting(
        {},
        "GPU cap",
        "All workers together take no more of this GPU's memory than this.",
        unit="bytes",
        minimum=0,
        maximum=1024 * GIB,
        step=256 * MIB,
        page="Memory",
        needs=Needs.RELOAD,
        zero_means="whatever the reserve leaves",
    )
    gpu_reserve_bytes: dict[str, int] = _setting(
        {},
        "GPU reserve",
        "Memory of this GPU that is always left to the desktop.",
        unit="bytes",
        minimum=0,
        maximum=64 * GIB,
        step=128 * MIB,
        page="Memory",
        needs=Needs.RELOAD,
        zero_means="by whether a display hangs on it",
    )
    force_load: bool = _setting(
        False,
        "Load what does not fit",
        "Overrides the memory plan's refusal. Logged at each load.",
        page="Memory",
    )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    engine: Literal["auto", "xllamacpp", "llama-server", "llama-cpp-python", "mlx"] = _setting(
        "auto",
        "Engine",
        "The program that runs models; auto takes what suits the hardware.",
        page="Models",
        needs=Needs.RELOAD,
    )
    llama_server: str = _setting(
        "",
        "llama-server",
        "Path of a llama-server program; empty looks on PATH.",
        page="Models",
        needs=Needs.RELOAD,
    )
    index: str = _setting(
        "",
        "Index of GPU builds",
        "Where `coolhead engine install` fetches cuda, rocm and vulkan builds; empty takes the index "
        "named in xllamacpp's documentation.",
        page="Models",
    )
    load_timeout_s: float = _setting(
        600.0,
        "Load time limit",
        "A load that makes no progress for this long is given up.",
        unit="s",
        minimum=5,
        maximum=7200,
        step=5,
        page="Models",
    )
    mmap: bool = _setting(
        True,
        "Map weights",
        "Maps the weights from the file instead of copying them.",
        page="Models",
        needs=Needs.RELOAD,
    )


@dataclass(frozen=True, slots=True)
class QueueSettings:
    max_queue_size: int = _setting(
        32,
        "Queue length",
        "Requests that may wait for a slot; the next one is told to come back.",
        minimum=0,
        maximum=4096,
        page="Endpoint",
    )
    max_wait_s: float = _setting(
        600.0,
        "Longest wait",
        "A request that waits longer than this is refused.",
        unit="s",
        minimum=1,
        maximum=7200,
        step=5,
        page="Endpoint",
    )
    overload: Literal["queue", "reject", "degrade"] = _setting(
        "queue",
        "When all slots are taken",
        "Queue the request, refuse it, or send it to its fallback.",
        page="Endpoint",
    )


@dataclass(frozen=True, slots=True)
class LimitSettings:
    max_tokens: int = _setting(
        0,
        "Tokens per answer",
        "An answer is ended after this many tokens.",
        unit="tokens",
        minimum=0,
        maximum=1_048_576,
        step=256,
        page="Desktop",
        zero_means="what the context holds",
    )
    max_seconds: float = _setting(
        0.0,
        "Seconds per answer",
        "An answer is ended after this long.",
        unit="s",
        minimum=0,
        maximum=86_400,
        step=10,
        page="Desktop",
        zero_means="no limit",
    )
    stop_repetition: bool = _setting(
        True,
        "Stop repetition",
        "Ends an answer that repeats the same words without end.",
        page="Desktop",
    )


@dataclass(frozen=True, slots=True)
class DesktopSettings:
    autostart: bool = _setting(
        False,
        "Start at login",
        "Starts Coolhead when you log in.",
        page="Desktop",
    )
    start_endpoint: bool = _setting(
        True,
        "Open the endpoint at start",
        "Serves as soon as the tray is up.",
        page="Desktop",
    )
    theme: Literal["system", "light", "dark"] = _setting(
        "system",
        "Colours",
        "Light, dark, or what the desktop uses.",
        page="Desktop",
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info",
        "Log level",
        "How much is written to the log.",
        page="Desktop",
        needs=Needs.RESTART,
    )
    pause_on_battery: bool = _setting(
        False,
        "Pause on battery",
        "Takes no new requests while the machine runs on battery.",
        page="Desktop",
    )
    pause_on_full_screen: bool = _setting(
        False,
        "Pause for full-screen programs",
        "Takes no new requests while a full-screen program runs.",
        page="Desktop",
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings; a change makes a new one. Thread: immutable, shared freely."""

    server: ServerSettings = field(default_factory=ServerSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    desktop: DesktopSettings = field(default_factory=DesktopSettings)

    def replace(self, changes: Mapping[str, object]) -> "Settings":
        """These settings with `changes` (dotted key to value, or to text) in place.

        Raises:
            SettingsInvalid: for an unknown key or a value outside its type or range.
        """
        result = self
        for key, raw in changes.items():
            known = describe(key)
            value = known.check(raw)
            section = getattr(result, known.section)
            if known.device:
                value = {**getattr(section, known.name), known.device: value}
            section = dataclasses.replace(section, **{known.name: value})
            result = dataclasses.replace(result, **{known.section: section})
        return result

    def value(self, key: str) -> object:
        """The value of a dotted key; of a per-device key without a device, the whole table."""
        known = describe(key, may_lack_device=True)
        value = getattr(getattr(self, known.section), known.name)
        return value.get(known.device, 0) if known.device else value

    def changed(self) -> dict[str, object]:
        """Every dotted key whose value differs from its default."""
        found: dict[str, object] = {}
        for known in all_settings():
            value = getattr(getattr(self, known.section), known.name)
            if known.per_device:
                found |= {f"{known.key}.{name}": size for name, size in value.items()}
            elif value != known.default:
                found[known.key] = value
        return found


def all_settings() -> Iterator[Description]:
    """Every setting there is, in the order of the pages."""
    yield from _DESCRIPTIONS.values()


def describe(key: str, *, may_lack_device: bool = False) -> Description:
    """The setting behind a dotted key.

    Raises:
        SettingsInvalid: when there is none; names those that are near.
    """
    section, _, rest = key.partition(".")
    name, _, device = rest.partition(".")
    known = _DESCRIPTIONS.get(f"{section}.{name}")
    if known is None or (device and not known.per_device):
        near = difflib.get_close_matches(key, _DESCRIPTIONS, 3, 0.4)
        hint = (
            f" Did you mean {' or '.join(near)}?" if near else " `coolhead settings get` lists all."
        )
        raise SettingsInvalid(f"There is no setting {key!r}.{hint}", key=key)
    if known.per_device and not device and not may_lack_device:
        raise SettingsInvalid(f"{key} needs a device, as in {key}.CUDA0.", key=key)
    return dataclasses.replace(known, device=device)


def _collect() -> dict[str, Description]:
    found: dict[str, Description] = {}
    for section_field in dataclasses.fields(Settings):
        section_type = cast("type", section_field.default_factory)
        hints = get_type_hints(section_type)
        blank = section_type()
        for item in dataclasses.fields(section_type):
            hint = hints[item.name]
            origin = get_origin(hint)
            choices = get_args(hint) if origin is Literal else ()
            kind = str if choices else int if origin is dict else hint
            found[f"{section_field.name}.{item.name}"] = Description(
                section_field.name,
                item.name,
                kind,
                choices,
                0 if origin is dict else getattr(blank, item.name),
                item.metadata["meta"],
                per_device=origin is dict,
            )
    return found


_DESCRIPTIONS = _collect()
