"""AMD and Intel GPUs on Linux, from sysfs; what a process holds of them, from its fdinfo.

Blocking, about a millisecond; called by `probe.py`. Names of the files: the kernel's amdgpu and
drm-usage-stats documents.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from app.core.hardware.machine import Gpu

SYS = Path("/sys")
PROC = Path("/proc")
AMD, INTEL = "0x1002", "0x8086"
INTEL_INTEGRATED = "0000:00:02.0"
NO_VENDOR = frozenset({"", "unknown"})


@dataclass(frozen=True, slots=True)
class _Card:
    folder: Path
    device: Path
    pci: str
    driver: str


def read_drm(ram_total_bytes: int, ram_available_bytes: int, sys: Path = SYS) -> tuple[Gpu, ...]:
    """AMD and Intel GPUs in bus order, named as the engine's Vulkan build would.

    Args:
        ram_total_bytes: an integrated GPU's share is taken from it.
        ram_available_bytes: what of it can be had now.
        sys: where sysfs is; tests give a tree of their own.
    """
    gpus: list[Gpu] = []
    for card in _cards(sys):
        vendor = _text(card.device / "vendor")
        device = f"Vulkan{len(gpus)}"
        if vendor == AMD:
            gpus.append(_amd(card, device, ram_available_bytes))
        elif vendor == INTEL:
            gpus.append(_intel(card, device, ram_total_bytes, ram_available_bytes))
    return tuple(gpus)


def drm_use(pids: Iterable[int], proc: Path = PROC) -> dict[str, int]:
    """Bytes that these processes hold, by bus address; GPU memory and RAM pinned for a GPU.

    A buffer that is open twice in a process is told twice; each client id is counted once.
    """
    held: dict[tuple[str, str], int] = {}
    for pid in pids:
        try:
            infos = list((proc / str(pid) / "fdinfo").iterdir())
        except OSError:
            continue
        for info in infos:
            fields = _fields(info)
            pci, client = fields.get("drm-pdev", ""), fields.get("drm-client-id", "")
            if pci:
                size = _resident(fields)
                held[pci, client] = max(held.get((pci, client), 0), size)
    use: dict[str, int] = {}
    for (pci, _), size in held.items():
        use[pci] = use.get(pci, 0) + size
    return use


def _cards(sys: Path) -> list[_Card]:
    found = []
    for folder in (sys / "class" / "drm").glob("card*"):
        device = folder / "device"
        if not folder.name.removeprefix("card").isdigit() or not device.is_dir():
            continue
        event = dict(
            line.split("=", 1) for line in _text(device / "uevent").splitlines() if "=" in line
        )
        found.append(_Card(folder, device, event.get("PCI_SLOT_NAME", ""), event.get("DRIVER", "")))
    return sorted(found, key=lambda card: (card.pci, card.folder.name))


def _amd(card: _Card, device: str, ram_available_bytes: int) -> Gpu:
    vram, vram_used = (
        _number(card.device / "mem_info_vram_total"),
        _number(card.device / "mem_info_vram_used"),
    )
    # Only memory chips of a card's own have a maker.
    integrated = _text(card.device / "mem_info_vram_vendor") in NO_VENDOR
    total, free = vram, max(0, vram - vram_used)
    if integrated:
        shared = _number(card.device / "mem_info_gtt_total")
        shared_used = _number(card.device / "mem_info_gtt_used")
        total += shared
        free += min(max(0, shared - shared_used), ram_available_bytes)
    name = _text(card.device / "product_name") or "AMD GPU"
    return _gpu(card, device, name, total, free, is_integrated=integrated)


def _intel(card: _Card, device: str, ram_total_bytes: int, ram_available_bytes: int) -> Gpu:
    own = _number(card.folder / "lmem_total_bytes")
    if own or card.pci != INTEL_INTEGRATED:
        free = _number(card.folder / "lmem_avail_bytes") or own
        return _gpu(card, device, "Intel GPU", own, free, is_integrated=False)
    half = ram_total_bytes // 2  # the driver's own bound on buffers in RAM
    return _gpu(card, device, "Intel GPU", half, min(half, ram_available_bytes), is_integrated=True)


def _gpu(card: _Card, device: str, name: str, total: int, free: int, *, is_integrated: bool) -> Gpu:
    outlets = card.folder.glob(f"{card.folder.name}-*/status")
    beside = card.folder.parent.glob(f"{card.folder.name}-*/status")
    return Gpu(
        device=device,
        name=name,
        total_bytes=total,
        free_bytes=min(total, free),
        has_display=any(_text(outlet) == "connected" for outlet in (*outlets, *beside)),
        is_integrated=is_integrated,
        driver=card.driver,
        kind="vulkan",
        pci=card.pci,
    )


def _resident(fields: dict[str, str]) -> int:
    """Bytes of all memory regions; new kernels say `resident`, older amdgpu `memory`."""
    for prefix in ("drm-resident-", "drm-memory-"):
        sizes = [_size(text) for name, text in fields.items() if name.startswith(prefix)]
        if sizes:
            return sum(sizes)
    return 0


def _size(text: str) -> int:
    units = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
    number, _, unit = text.partition(" ")
    return int(number) * units.get(unit.strip(), 1) if number.isdigit() else 0


def _fields(path: Path) -> dict[str, str]:
    found = {}
    for line in _text(path).splitlines():
        name, _, value = line.partition(":")
        found[name.strip()] = value.strip()
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdigit() else 0
