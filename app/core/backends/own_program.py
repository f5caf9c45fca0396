"""How our own hidden programs are started as workers, and the additions to their environment.

The guard gives every worker a bare environment; what is here comes on top. Called by the backends.
"""

import os
import sys
from pathlib import Path

import app


def own_argv(*words: str) -> tuple[str, ...]:
    """The command line of one of our hidden programs, in a checkout, installed, or frozen.

    With `-P`, so that a folder called `app` in the working directory is never run.
    """
    if getattr(sys, "frozen", False):
        return (sys.executable, *words)
    return (sys.executable, "-P", "-m", "app", *words)


def worker_env(python_folders: tuple[str, ...] = ()) -> dict[str, str]:
    """What a worker needs beside a bare environment.

    Args:
        python_folders: searched before everything else, such as the folder of an engine's build.
    """
    package_parent = str(Path(app.__file__).resolve().parent.parent)
    return {
        "PYTHONPATH": os.pathsep.join([*python_folders, package_parent]),
        "PYTHONUNBUFFERED": "1",
        "GGML_NO_BACKTRACE": "1",  # on an abort it would start a debugger
        # Threads that wait for each other sleep instead of spinning: beside other busy programs two
        # threads gave 17 to 63 tokens/s so, and 2 spinning, and the spinning was taken from them.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive"),
    }
