"""Battery or mains on macOS, from what `pmset` says."""

import subprocess

from app.core.hardware.power import Power

PMSET = ("/usr/bin/pmset", "-g", "batt")
LIMIT_S = 5.0


def read() -> Power:
    try:
        told = subprocess.run(
            PMSET, capture_output=True, text=True, timeout=LIMIT_S, check=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Power(False, f"Whether the machine runs on battery cannot be told ({error}).")
    return parse(told.stdout)


def parse(text: str) -> Power:
    """Its first line is "Now drawing from 'Battery Power'", or 'AC Power', or 'UPS Power'."""
    head = text.partition("\n")[0]
    return Power("'Battery Power'" in head or "'UPS Power'" in head)
