"""The models on this machine: every GGUF file and MLX folder in the model folders.

Asked by the supervisor, `/v1/models`, the panel and the command line. Each call looks at the folders
anew (a millisecond or two for some hundred files); headers are read once and kept for as long as the
file stays as it is. Blocking; a lock makes it safe from any thread.
"""

import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.core.errors import CoolheadError, ModelError, ModelFileInvalid, ModelUnknown
from app.core.models.mlx_folder import is_mlx_folder, read_mlx_spec
from app.core.models.spec import ModelSpec, read_spec
from app.core.paths import Paths

MAX_DEPTH = 5
MAX_FILES = 5000
"""Below a model folder; who points it at a whole disk gets an answer, not a hang."""

_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")
_ODD = re.compile(r"[^a-z0-9._-]+")
NOT_MODELS = frozenset({"clip", "imatrix"})
"""Architectures of files that go with a model: vision encoders, importance matrices."""


@dataclass(frozen=True, slots=True)
class DamagedModel:
    """A file that is named like a model and cannot be read as one."""

    model_id: str
    path: Path
    error: CoolheadError


@dataclass(frozen=True, slots=True)
class _Known:
    """What was read from a file, and the file's state then."""

    size_bytes: int
    changed_ns: int
    spec: ModelSpec | None
    error: CoolheadError | None


class ModelLibrary:
    """Thread: any.

    Args:
        paths: whose `models` folder is looked at first.
        folders: more folders of the user's.
    """

    def __init__(self, paths: Paths, folders: Sequence[Path] = ()) -> None:
        self._folders = (paths.models, *(folder.expanduser() for folder in folders))
        self._known: dict[Path, _Known] = {}  # written under the lock only
        self._lock = threading.Lock()

    def look_in(self, folders: Sequence[Path]) -> None:
        """From now on these folders of the user's, beside the app's own."""
        self._folders = (self._folders[0], *(folder.expanduser() for folder in folders))

    def specs(self) -> tuple[ModelSpec, ...]:
        """The models, by id. Damaged files are left out; `damaged` tells of them."""
        return self._scan()[0]

    def damaged(self) -> tuple[DamagedModel, ...]:
        """Files that are named like models and are none, with the reason."""
        return self._scan()[1]

    def find(self, model_id: str) -> ModelSpec:
        """The model of that id; capitals and a trailing ".gguf" do not matter.

        Raises:
            ModelUnknown: there is none; with the list of those there are.
            ModelFileInvalid: there is such a file, and it is damaged.
        """
        specs, damaged = self._scan()
        wanted = model_id.strip().lower().removesuffix(".gguf")
        for spec in specs:
            if spec.model_id == wanted:
                return spec
        for broken in damaged:
            if broken.model_id == wanted:
                raise broken.error
        names = [spec.model_id for spec in specs]
        there_are = f"Installed: {', '.join(names)}." if names else "No model is installed."
        raise ModelUnknown(
            f"There is no model {model_id!r}. {there_are} `coolhead models pull NAME` fetches one.",
            model=model_id,
            models=names,
        )

    def _scan(self) -> tuple[tuple[ModelSpec, ...], tuple[DamagedModel, ...]]:
        with self._lock:
            seen: dict[Path, _Known] = {}
            for path in self._files():
                known = self._read(path)
                if known is not None:
                    seen[path] = known
            self._known = seen
        specs, damaged = [], []
        for path, model_id in _ids(seen).items():
            known = seen[path]
            if known.spec is not None:
                specs.append(replace(known.spec, model_id=model_id))
            elif known.error is not None:
                damaged.append(DamagedModel(model_id, path, known.error))
        return tuple(sorted(specs, key=lambda spec: spec.model_id)), tuple(damaged)

    def _files(self) -> Iterator[Path]:
        """Candidates, each real file once, however many folders lead to it."""
        seen: set[str] = set()
        walked: set[tuple[int, int]] = set()
        count = 0
        for folder in self._folders:
            for path in _walk(folder, 0, walked):
                real = os.path.realpath(path)
                if real in seen:
                    continue
                seen.add(real)
                count += 1
                if count > MAX_FILES:
                    return
                yield path

    def _read(self, path: Path) -> _Known | None:
        try:
            status = path.stat()
        except OSError:
            return None
        known = self._known.get(path)
        if (
            known is not None
            and known.size_bytes == status.st_size
            and known.changed_ns == status.st_mtime_ns
        ):
            return known
        spec, error = None, None
        try:
            spec = read_mlx_spec(path) if path.is_dir() else read_spec(path)
        except ModelError as problem:
            error = problem
        except (OSError, RecursionError) as problem:  # gone meanwhile, or made to be read for ever
            reason = str(problem)
            error = ModelFileInvalid(
                f"{path.name} is not a usable model file: {reason}.",
                path=str(path),
                offset=0,
                reason=reason,
            )
        if spec is not None and not _answers(spec):
            spec = None
        return _Known(status.st_size, status.st_mtime_ns, spec, error)


def _walk(folder: Path, depth: int, walked: set[tuple[int, int]]) -> Iterator[Path]:
    """Candidates below a folder; `walked` has the folders already seen, whatever links lead to them."""
    try:
        status = folder.stat()
        if (status.st_dev, status.st_ino) in walked:
            return
        walked.add((status.st_dev, status.st_ino))
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        path = Path(entry.path)
        if entry.name.startswith("."):
            continue
        try:
            is_file, is_folder = entry.is_file(), entry.is_dir()
        except OSError:  # a link that leads to itself
            continue
        if entry.name.lower().endswith(".gguf"):
            split = _SPLIT.search(path.stem)
            if is_file and (split is None or int(split[1]) == 1):
                yield path
        elif depth < MAX_DEPTH and is_folder:
            if is_mlx_folder(path):
                yield path
            else:
                yield from _walk(path, depth + 1, walked)


def _answers(spec: ModelSpec) -> bool:
    """Whether it is a language model by itself, and not a part that goes with one."""
    kind = spec.header.text("general.type", "model") if spec.header else "model"
    return kind == "model" and spec.architecture not in NOT_MODELS


def readable_id(name: str) -> str:
    """A file's stem as a model id: lower case, without a split's numbers or odd characters."""
    return _ODD.sub("-", _SPLIT.sub("", name).lower()).strip("-._") or "model"


def _ids(known: dict[Path, _Known]) -> dict[Path, str]:
    """An id for each path; files of one name are told apart by their folder, then by a number."""
    plain = {path: readable_id(path.name if path.is_dir() else path.stem) for path in known}
    taken: set[str] = set()
    ids: dict[Path, str] = {}
    for path, name in plain.items():
        chosen = name
        if chosen in taken:
            chosen = f"{readable_id(path.parent.name)}-{name}"
        number = 2
        while chosen in taken:
            chosen = f"{name}-{number}"
            number += 1
        taken.add(chosen)
        ids[path] = chosen
    return ids


def open_model(library: ModelLibrary, name: str) -> ModelSpec:
    """A model by id, or by the path of a file or MLX folder anywhere.

    Raises:
        ModelUnknown: it is neither.
        ModelFileInvalid: it is a file that is no model.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        if is_mlx_folder(path):
            return read_mlx_spec(path)
        raise ModelFileInvalid(
            f"{path} is a folder without a model in it; name a GGUF file.",
            path=str(path),
            offset=0,
            reason="a folder",
        )
    if path.exists() or os.sep in name:
        return read_spec(path, readable_id(path.stem))
    return library.find(name)
