"""Figures and tables as a person reads them at a terminal."""

from collections.abc import Sequence


def size(count: float) -> str:
    """Bytes in binary units with at most one decimal: `331 MiB`, `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"


def table(rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """Rows in aligned columns, two spaces apart."""
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        indent
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
