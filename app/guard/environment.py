"""The environment that a worker starts with: what engines need, nothing else of the user's. Pure.

Secrets that happen to be in the app's environment (tokens of other services) stay out of workers.
"""

import os
from collections.abc import Mapping

_NAMES = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP",
        "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "LIBRARY_PATH",
        "PYTHONPATH", "PYTHONHOME", "PYTHONUTF8", "VIRTUAL_ENV", "COOLHEAD_HOME",
        "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR",
        "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "USERPROFILE", "APPDATA",
        "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES", "NUMBER_OF_PROCESSORS", "VK_ICD_FILENAMES",
        "VK_DRIVER_FILES",
    }
)  # fmt: skip
_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "HIP_", "HSA_", "ROCR_", "GGML_", "OMP_", "VK_LOADER_")


def worker_environment(
    additions: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The bare environment with `additions`, which win."""
    source = os.environ if environ is None else environ
    bare = {
        name: value
        for name, value in source.items()
        if name.upper() in _NAMES or name.upper().startswith(_PREFIXES)
    }
    return bare | dict(additions)
