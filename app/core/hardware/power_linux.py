"""Battery or mains on Linux, from sysfs."""

from pathlib import Path

from app.core.hardware.power import Power

SUPPLIES = Path("/sys/class/power_supply")


def read(folder: Path = SUPPLIES) -> Power:
    """On battery: something that feeds the machine is discharging, and no mains is plugged in.

    Batteries of mice and headphones have the scope `Device` and do not count. A charger that is
    plugged in but too weak counts as mains: the user has done what could be done.
    """
    try:
        supplies = sorted(folder.iterdir())
    except OSError:
        return Power(False)  # no such class: nothing here has a battery
    is_discharging = False
    for supply in supplies:
        kind = _read(supply / "type")
        if _read(supply / "scope") == "Device":
            continue
        if kind in {"Mains", "USB", "Wireless"} and _read(supply / "online") == "1":
            return Power(False)
        if kind in {"Battery", "UPS"} and _read(supply / "status") == "Discharging":
            is_discharging = True
    return Power(is_discharging)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
