"""The guard process: sets itself up so that pressure cannot stop it, then runs the watchdog.

Started by `client` as `coolhead guard --fd N`; one thread, no Qt, no asyncio.
"""

import argparse
import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Sequence

from app.guard.keeper import keep
from app.guard.options import GuardOptions, decode_options, for_system
from app.guard.systems import open_system
from app.guard.watchdog import Watchdog, log_exception

OWN_NICE = -5


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until the app is gone or says so; 0 then, 1 after a failure of our own."""
    parser = argparse.ArgumentParser(prog="coolhead guard", add_help=False)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--options", default="")
    parser.add_argument("--keeper", action="store_true")
    arguments = parser.parse_args(argv)
    _ignore_signals()
    if arguments.keeper:
        return keep(arguments.fd)
    options = decode_options(arguments.options) if arguments.options else GuardOptions()
    options = for_system(options, sys.platform)
    try:
        system = open_system(arguments.fd, options)
        _settle()
        try:
            Watchdog(system.link, system.spawner, system.sampler, options, system.reader).run()
        finally:
            system.reader.close()
            system.link.close()
    except Exception:  # noqa: BLE001 - the watchdog: workers end with us, the client starts a new one
        log_exception()
        return 1
    return 0


def _ignore_signals() -> None:
    """A Ctrl-C in the app's terminal, or a polite stop of everything, is the app's business.

    We end when the app does, which closes the link.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_IGN)


def _settle() -> None:
    """No collections from here on, and the best chances that the system gives without asking."""
    gc.collect()
    gc.freeze()
    gc.disable()
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, OWN_NICE)
        _lock_memory()


def _lock_memory() -> None:
    """Only where it is unlimited: under a limit, later allocations would fail instead."""
    import resource

    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] != resource.RLIM_INFINITY:
        return
    current, future, on_fault = 1, 2, 4
    ctypes.CDLL(None).mlockall(current | future | on_fault)


if __name__ == "__main__":
    sys.exit(main())
