"""How our own hidden programs are started, and what environment a worker gets.

A worker gets a bare environment: what names folders, languages and devices, and nothing else, so
that no key or proxy of the user's reaches a third-party engine. Called by the backends.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import app

_KEPT_NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "TEMP", "TMP"),
        *("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
        *("SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "USERPROFILE", "APPDATA", "LOCALAPPDATA"),
        *("PROGRAMDATA", "COMSPEC", "NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE"),
    }
)
_KEPT_PREFIXES = ("LC_", "CUDA_", "HIP_", "ROCR_", "HSA_", "GGML_", "VK_", "MESA_", "MTL_")


def own_argv(*words: str) -> tuple[str, ...]:
    """The command line of one of our hidden programs, in a checkout, installed, or frozen.

    With `-P`, so that a folder called `app` in the working directory is never run.
    """
    if getattr(sys, "frozen", False):
        return (sys.executable, *words)
    return (sys.executable, "-P", "-m", "app", *words)


def worker_env(
    python_folders: tuple[str, ...] = (), environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """A worker's whole environment.

    Args:
        python_folders: searched before everything else, such as an engine's build.
        environ: ours, unless a test gives another one.
    """
    source = os.environ if environ is None else environ
    env = {
        name: value
        for name, value in source.items()
        if name.upper() in _KEPT_NAMES or name.startswith(_KEPT_PREFIXES)
    }
    package_parent = str(Path(app.__file__).resolve().parent.parent)
    env["PYTHONPATH"] = os.pathsep.join([*python_folders, package_parent])
    env["PYTHONUNBUFFERED"] = "1"
    env["GGML_NO_BACKTRACE"] = "1"  # it would start a debugger on an abort
    return env
