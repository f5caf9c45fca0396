"""Deleting a model's files, and only those that are ours to delete.

Called by the command line and the panel, on a thread that may block. The caller sees to it that the
model is not loaded.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from app.core.errors import FolderUnusable, ModelError
from app.core.models.mlx_folder import read_mlx_spec
from app.core.models.spec import read_spec


def is_ours(path: Path, models: Path) -> bool:
    """Whether a model's file lies in the models folder of ours, and not in one of the user's."""
    return path.parent.resolve().is_relative_to(models.resolve())


def files_of(path: Path) -> tuple[Path, ...]:
    """All files of the model that begins at `path`; of one that cannot be read, that one."""
    try:
        return (read_mlx_spec(path) if path.is_dir() else read_spec(path)).files
    except ModelError:
        return (path,)


def remove(path: Path, files: Sequence[Path], models: Path) -> int:
    """Deletes a model; the bytes that its files had.

    Args:
        path: its first file, or its folder.
        files: all of its files.
        models: the models folder; what lies elsewhere is the user's.

    Raises:
        ModelError: it lies elsewhere.
        FolderUnusable: a file cannot be deleted.
    """
    if not is_ours(path, models):
        raise ModelError(
            f"{path} is not in {models} and is left alone: delete it yourself, or take its "
            "folder out of model.folders."
        )
    try:
        freed = sum(file.lstat().st_size for file in files)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            for file in files:
                file.unlink()
    except OSError as error:
        raise FolderUnusable(
            f"{path} cannot be deleted: {error.strerror}. Make {models} writable.", path=str(path)
        ) from error
    return freed
