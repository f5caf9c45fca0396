"""Models from the Hub, through huggingface_hub in a child process that can be watched and ended.

`HF_ENDPOINT` names a mirror and `HF_TOKEN` a token, as everywhere. Called by `download.py`; `main` is
the child's side and the only place where huggingface_hub is imported.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.core.errors import DownloadFailed
from app.core.models.catalogue import CatalogueEntry
from app.core.models.fetch_process import Ended, run_fetch
from app.core.models.gguf import SPLIT_NAME

HIDDEN_VERB = "hub"
LIST_STALL_S = 90.0
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository; 0 bytes where the Hub does not say."""

    name: str
    size_bytes: int


def list_files(
    repo: str, scratch: Path, cancelled: threading.Event | None = None
) -> tuple[HubFile, ...]:
    """The GGUF files of a repository.

    Raises:
        DownloadFailed: there is no such repository, or the Hub cannot be reached.
    """
    ended = run_fetch(
        _command("list", repo),
        scratch,
        env=_environment(scratch),
        grown=lambda _: None,
        cancelled=cancelled,
        stall_s=LIST_STALL_S,
    )
    if ended.status:
        raise DownloadFailed(_why(repo, ended), complaint=ended.complaint)
    (scratch / ".out").unlink()
    rows = json.loads((scratch / "files.json").read_text(encoding="utf-8"))
    (scratch / "files.json").unlink()
    return tuple(HubFile(name, size) for name, size in rows)


def choose_files(entry: CatalogueEntry, files: Sequence[HubFile]) -> tuple[HubFile, ...]:
    """The files of the wanted model: one, or all parts of a split one.

    Raises:
        DownloadFailed: the repository has none that is meant; with the names it has.
    """
    models = [file for file in files if "mmproj" not in file.name.lower()]
    wanted = entry.quantization or "Q4_K_M"
    if entry.file:
        found = [file for file in models if file.name == entry.file]
    else:
        found = [file for file in models if _has_quantization(file.name, wanted)]
        if not found and not entry.quantization and len(models) == 1:
            found = models
    if not found:
        names = ", ".join(file.name for file in models[:20]) or "no GGUF file"
        raise DownloadFailed(
            f"{entry.repo} has no {entry.file or wanted}; it has {names}. Name one as "
            f"{entry.repo}:FILE."
        )
    first = min(found, key=lambda file: file.name)
    split = SPLIT_NAME.match(first.name)
    if split is None:
        return (first,)
    return tuple(
        file
        for file in sorted(models, key=lambda file: file.name)
        if (part := SPLIT_NAME.match(file.name))
        and part["stem"] == split["stem"]
        and part["count"] == split["count"]
    )


def quantizations(files: Sequence[HubFile], names: Sequence[str]) -> dict[str, int]:
    """Which of these quantizations a repository has, with the bytes of each."""
    found: dict[str, int] = {}
    for file in files:
        if "mmproj" in file.name.lower():
            continue
        for name in names:
            if _has_quantization(file.name, name):
                found[name] = found.get(name, 0) + file.size_bytes
    return found


def _has_quantization(name: str, quantization: str) -> bool:
    stem = Path(name).stem.upper().replace(".", "-")
    split = SPLIT_NAME.match(Path(name).name)
    if split:
        stem = split["stem"].upper().replace(".", "-")
    return stem.endswith(f"-{quantization.upper()}")


def fetch_file(
    repo: str,
    file: HubFile,
    scratch: Path,
    grown: Callable[[int], None],
    cancelled: threading.Event | None,
) -> Path:
    """One file, into `scratch`.

    Raises:
        DownloadFailed: it could not be fetched.
    """
    ended = run_fetch(
        _command("get", repo, file.name),
        scratch,
        env=_environment(scratch),
        grown=grown,
        cancelled=cancelled,
    )
    path = scratch / "hub" / file.name
    if ended.status or not path.is_file():
        raise DownloadFailed(_why(repo, ended), complaint=ended.complaint)
    return path


def _command(*words: str) -> list[str]:
    if getattr(sys, "frozen", False):
        return [sys.executable, HIDDEN_VERB, *words]
    code = "import sys; from app.core.models.hub import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-P", "-c", code, *words]


def _environment(scratch: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # Its caches would be a second copy, and on another disk.
        "HF_HUB_CACHE": str(scratch / "cache"),
        "HF_XET_CACHE": str(scratch / "xet"),
        "TMPDIR": str(scratch),
    }


def _why(repo: str, ended: Ended) -> str:
    lines = [line.strip() for line in ended.complaint.splitlines() if line.strip()]
    last = lines[-1] if lines else f"the download ended with status {ended.status}"
    where = os.environ.get("HF_ENDPOINT") or "the Hub"
    return (
        f"{repo} could not be fetched from {where}: {last} Check the name and the network; "
        "HF_ENDPOINT names a mirror, HF_TOKEN opens repositories that ask for a licence."
    )


def main(argv: Sequence[str]) -> int:
    """In the child: `list REPO` writes files.json, `get REPO FILE` fetches into ./hub."""
    try:
        import huggingface_hub
    except ImportError:
        print("huggingface_hub is not installed", file=sys.stderr)
        return 1
    try:
        if argv[0] == "list":
            info = huggingface_hub.HfApi().model_info(argv[1], files_metadata=True)
            rows = [
                (each.rfilename, each.size or 0)
                for each in info.siblings or ()
                if each.rfilename.lower().endswith(".gguf")
            ]
            Path("files.json").write_text(json.dumps(rows), encoding="utf-8")
        else:
            huggingface_hub.hf_hub_download(argv[1], argv[2], local_dir="hub")
    except Exception as error:  # noqa: BLE001 - the edge to a library with a dozen kinds of errors; the parent gets its words
        print(" ".join(f"{type(error).__name__}: {error}".split())[:600], file=sys.stderr)
        return 1
    return 0
