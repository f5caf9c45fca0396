"""Logging for one process: a queue in front of a rotating file, so that no caller waits for a disk.

`start_logging` is called once by each process of ours, before its threads start. Prompts,
completions and keys never reach a log.
"""

import logging
import logging.handlers
import queue
import sys
from collections.abc import Callable
from pathlib import Path

FORMAT = "%(asctime)s %(levelname)-7s %(threadName)s %(name)s: %(message)s"
FILE_BYTES = 5 * 1024 * 1024
FILES_KEPT = 5


def start_logging(
    folder: Path | None, level: str = "info", *, to_stderr: bool = False
) -> Callable[[], None]:
    """Routes every logger of this process to `folder`/coolhead.log and, if asked, to stderr.

    Args:
        folder: where the log is kept (5 files of 5 MiB); None for no file.
        level: debug, info, warning or error.
        to_stderr: also print, for `--headless` at a terminal.

    Returns:
        A function that flushes and stops; call it last.
    """
    handlers: list[logging.Handler] = []
    if folder is not None:
        handlers.append(
            logging.handlers.RotatingFileHandler(
                folder / "coolhead.log",
                maxBytes=FILE_BYTES,
                backupCount=FILES_KEPT - 1,
                encoding="utf-8",
            )
        )
    if to_stderr:
        handlers.append(logging.StreamHandler(sys.stderr))
    for handler in handlers:
        handler.setFormatter(logging.Formatter(FORMAT))
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    root = logging.getLogger()
    root.setLevel(level.upper())
    front = logging.handlers.QueueHandler(lines)
    root.addHandler(front)
    for noisy in ("httpx2", "httpcore2", "asyncio", "filelock"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    listener = logging.handlers.QueueListener(lines, *handlers)
    listener.start()

    def stop() -> None:
        root.removeHandler(front)
        listener.stop()
        for handler in handlers:
            handler.close()

    return stop
