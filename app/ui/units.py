"""Figures as people read them: sizes, durations, counts, with their units. Pure, any thread."""

from app.core.settings_meta import GIB, MIB

_KIB = 1024


def size_text(size_bytes: float) -> str:
    """A size in the largest unit that keeps it at one or more, as in `5.4 GiB`."""
    sign, size = ("-" if size_bytes < 0 else ""), abs(size_bytes)
    if size >= GIB:
        return f"{sign}{_trim(size / GIB, 2 if size < 10 * GIB else 1)} GiB"
    if size >= MIB:
        return f"{sign}{_trim(size / MIB, 0)} MiB"
    if size >= _KIB:
        return f"{sign}{_trim(size / _KIB, 0)} KiB"
    return f"{sign}{int(size)} bytes"


def value_text(value: object, unit: str) -> str:
    """A setting's value with its unit; sizes are converted, other units stand behind."""
    if unit == "bytes" and isinstance(value, int | float):
        return size_text(value)
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int | float):
        number = f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
        return f"{number} {unit}".rstrip()
    return str(value)


def _trim(number: float, digits: int) -> str:
    text = f"{number:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text
