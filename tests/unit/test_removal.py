"""Deleting models: all files of one, only ours, a link and not what it leads to."""

from pathlib import Path

import pytest

from app.core.errors import FolderUnusable, ModelError
from app.core.models.removal import files_of, is_ours, remove
from tests.fakes.gguf_models import qwen2_7b, write_model


def _model(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_model(qwen2_7b(), path)


def test_remove_model_of_ours_frees_its_bytes(tmp_path: Path) -> None:
    path = _model(tmp_path / "models" / "a" / "one.gguf")
    other = _model(tmp_path / "models" / "two.gguf")
    size = path.lstat().st_size
    assert remove(path, files_of(path), tmp_path / "models") == size
    assert not path.exists()
    assert other.exists()


def test_remove_model_elsewhere_is_left_alone(tmp_path: Path) -> None:
    path = _model(tmp_path / "mine" / "one.gguf")
    (tmp_path / "models").mkdir()
    assert not is_ours(path, tmp_path / "models")
    with pytest.raises(ModelError, match="left alone"):
        remove(path, files_of(path), tmp_path / "models")
    assert path.exists()


def test_remove_link_takes_the_link_alone(tmp_path: Path) -> None:
    target = _model(tmp_path / "mine" / "one.gguf")
    link = tmp_path / "models" / "one.gguf"
    link.parent.mkdir()
    link.symlink_to(target)
    remove(link, (link,), link.parent)
    assert not link.is_symlink()
    assert target.exists()


def test_remove_damaged_or_missing_file_says_what_is(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")
    assert files_of(broken) == (broken,)
    assert remove(broken, files_of(broken), tmp_path) == 8
    with pytest.raises(FolderUnusable, match="cannot be deleted"):
        remove(broken, (broken,), tmp_path)
