"""How this program starts itself: the command and the environment. Pure but for `sys` and `os.environ`."""

import os
import sys
from pathlib import Path


def guard_command() -> list[str]:
    """How our own program is started as the guard, in a checkout, installed or frozen."""
    if getattr(sys, "frozen", False):
        return [sys.executable, "guard"]
    return [sys.executable, "-P", "-m", "app", "guard"]


def own_environment() -> dict[str, str]:
    """This environment, with the folder of our package first on the module path."""
    root = str(Path(__file__).resolve().parent.parent.parent)
    before = os.environ.get("PYTHONPATH")
    return dict(os.environ) | {"PYTHONPATH": f"{root}{os.pathsep}{before}" if before else root}
