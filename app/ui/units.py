"""Figures as people read them, with their units. Pure, any thread."""

from app.core.models.sizes import size_text


def value_text(value: object, unit: str) -> str:
    """A setting's value with its unit; sizes are converted, other units stand behind."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if unit == "bytes" and isinstance(value, int | float):
        return size_text(value)
    if isinstance(value, int | float):
        number = f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
        return f"{number} {unit}".rstrip()
    return str(value)
