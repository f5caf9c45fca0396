"""What the library finds in folders, how it names it, and what it makes of damaged files."""

import dataclasses
import json
import os
import struct
import time
from pathlib import Path

import pytest

from app.core.errors import ModelFileInvalid, ModelFileMissing, ModelUnknown
from app.core.models.catalogue import starter
from app.core.models.library import ModelLibrary, open_model, readable_id
from app.core.models.outline import outlined
from app.core.models.spec import ModelSpec, read_spec, spec_of
from app.core.paths import Paths
from tests.fakes.gguf_models import FakeModel, write_model


def tiny(folder: Path, name: str, architecture: str = "llama", **plain: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    keys: dict[str, int | float | bool | str | list[int] | list[float] | list[bool]] = {
        "context_length": 512,
        "block_count": 1,
        "embedding_length": 32,
    }
    model = FakeModel(architecture, keys)
    model.add("token_embd.weight", 32, 32)
    return write_model(model, folder / name, plain)


def ids(library: ModelLibrary) -> list[str]:
    return [spec.model_id for spec in library.specs()]


def test_library_empty_folders_hold_no_model(coolhead_home: Paths, tmp_path: Path) -> None:
    library = ModelLibrary(coolhead_home, [tmp_path / "not-there"])
    assert library.specs() == ()
    with pytest.raises(ModelUnknown, match="No model is installed"):
        library.find("any")


def test_library_names_are_readable_and_sorted(coolhead_home: Paths, tmp_path: Path) -> None:
    tiny(coolhead_home.models, "Zephyr 7B (best).Q4_K_M.GGUF")
    tiny(tmp_path / "more" / "deep", "Qwen3-0.6B_Q8_0.gguf")
    library = ModelLibrary(coolhead_home, [tmp_path / "more"])
    assert ids(library) == ["qwen3-0.6b_q8_0", "zephyr-7b-best-.q4_k_m"]
    assert library.find("QWEN3-0.6B_Q8_0.gguf").model_id == "qwen3-0.6b_q8_0"


def test_library_same_name_in_two_folders_stays_apart(coolhead_home: Paths, tmp_path: Path) -> None:
    tiny(coolhead_home.models, "a.gguf")
    tiny(tmp_path / "other", "a.gguf")
    tiny(tmp_path / "more" / "other", "a.gguf")
    library = ModelLibrary(coolhead_home, [tmp_path / "other", tmp_path / "more"])
    assert ids(library) == ["a", "a-2", "other-a"]
    assert ids(library) == ids(ModelLibrary(coolhead_home, [tmp_path / "other", tmp_path / "more"]))


def test_library_file_reached_by_two_ways_counts_once(coolhead_home: Paths, tmp_path: Path) -> None:
    path = tiny(tmp_path / "real", "a.gguf")
    (coolhead_home.models / "link.gguf").symlink_to(path)
    library = ModelLibrary(coolhead_home, [tmp_path / "real", tmp_path])
    assert len(library.specs()) == 1


def test_library_damaged_file_is_told_and_the_others_stay(coolhead_home: Paths) -> None:
    tiny(coolhead_home.models, "good.gguf")
    (coolhead_home.models / "bad.gguf").write_bytes(b"GGUF" + b"\xff" * 200)
    (coolhead_home.models / "page.gguf").write_text("<!doctype html>")
    (coolhead_home.models / "empty.gguf").write_bytes(b"")
    library = ModelLibrary(coolhead_home)
    assert ids(library) == ["good"]
    assert sorted(each.model_id for each in library.damaged()) == ["bad", "empty", "page"]
    with pytest.raises(ModelFileInvalid):
        library.find("page")
    with pytest.raises(ModelUnknown, match="Installed: good"):
        library.find("other")


def test_library_encoders_adapters_and_half_downloads_are_no_models(coolhead_home: Paths) -> None:
    tiny(coolhead_home.models, "mmproj-model.gguf", "clip")
    tiny(coolhead_home.models, "lora.gguf", **{"general.type": "adapter"})
    tiny(coolhead_home.models / ".fetch-1-x", "half.gguf")
    (coolhead_home.models / "model.gguf.part").write_bytes(b"GGUF")
    library = ModelLibrary(coolhead_home)
    assert library.specs() == ()
    assert library.damaged() == ()


def test_library_split_model_is_one_by_its_first_part(coolhead_home: Paths) -> None:
    for number in (2, 3):
        tiny(coolhead_home.models, f"big-0000{number}-of-00003.gguf")
    library = ModelLibrary(coolhead_home)
    assert library.specs() == ()
    tiny(coolhead_home.models, "big-00001-of-00003.gguf")
    assert ids(library) == ["big"]


def test_library_sees_what_changed_and_reads_nothing_twice(
    coolhead_home: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def counted(path: Path) -> ModelSpec:
        read.append(path)
        return read_spec(path)

    monkeypatch.setattr("app.core.models.library.read_spec", counted)
    path = tiny(coolhead_home.models, "a.gguf")
    library = ModelLibrary(coolhead_home)
    assert ids(library) == ids(library) == ["a"]
    assert len(read) == 1
    tiny(coolhead_home.models, "b.gguf")
    assert ids(library) == ["a", "b"]
    os.utime(path, (time.time() + 5, time.time() + 5))
    library.specs()
    assert read.count(path) == 2
    path.unlink()
    assert ids(library) == ["b"]


def mlx_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "max_position_embeddings": 4096,
        "quantization": {"group_size": 64, "bits": 4},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    table = {
        "w.weight": {"dtype": "U32", "shape": [128, 16], "data_offsets": [0, 8192]},
        "w.scales": {"dtype": "F16", "shape": [128, 2], "data_offsets": [8192, 8704]},
        "n.weight": {"dtype": "F16", "shape": [128], "data_offsets": [8704, 8960]},
    }
    head = json.dumps(table).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(8960))
    return folder


def test_library_mlx_folder_is_a_model(coolhead_home: Paths) -> None:
    path = mlx_folder(coolhead_home.models / "Llama-4bit")
    (spec,) = ModelLibrary(coolhead_home).specs()
    assert (spec.model_id, spec.format, spec.quantization) == ("llama-4bit", "mlx", "4bit")
    assert (spec.layers, spec.trained_context_tokens, spec.has_chat_template) == (2, 4096, True)
    assert spec.parameters == 128 * 2 * 64 + 128
    (path / "config.json").write_text("[1]")
    assert ModelLibrary(coolhead_home).damaged()[0].model_id == "llama-4bit"


def test_library_damaged_safetensors_head_is_told(coolhead_home: Paths) -> None:
    path = mlx_folder(coolhead_home.models / "broken")
    (path / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60))
    assert "claims" in ModelLibrary(coolhead_home).damaged()[0].error.message


def test_open_model_takes_paths_and_ids(coolhead_home: Paths, tmp_path: Path) -> None:
    path = tiny(tmp_path / "elsewhere", "Other Model.gguf")
    tiny(coolhead_home.models, "here.gguf")
    library = ModelLibrary(coolhead_home)
    assert open_model(library, str(path)).model_id == "other-model"
    assert open_model(library, "here").model_id == "here"
    with pytest.raises(ModelFileMissing):
        open_model(library, str(tmp_path / "gone.gguf"))
    with pytest.raises(ModelFileInvalid, match="folder"):
        open_model(library, str(tmp_path))


@pytest.mark.parametrize(
    ("name", "model_id"),
    [
        ("Qwen3-8B-Q4_K_M-00001-of-00004", "qwen3-8b-q4_k_m"),
        ("Ünïcode 模型", "n-code"),
        ("...", "model"),
    ],
)
def test_readable_id_is_plain(name: str, model_id: str) -> None:
    assert readable_id(name) == model_id


@pytest.mark.skipif(os.name == "nt", reason="links and pipes of that kind are not there")
def test_library_links_in_circles_and_pipes_hide_nothing(coolhead_home: Paths) -> None:
    folder = coolhead_home.models
    tiny(folder / "deep", "a.gguf")
    (folder / "self.gguf").symlink_to("self.gguf")
    (folder / "self").symlink_to("self")
    os.mkfifo(folder / "pipe.gguf")
    (folder / "endless.gguf").symlink_to("/dev/zero")
    for number in range(12):
        (folder / "deep" / f"up-{number}").symlink_to("..")
        (folder / "deep" / f"here-{number}").symlink_to(".")
    mlx = folder / "mlx"
    mlx.mkdir()
    (mlx / "config.json").write_text("[" * 100_000)
    os.mkfifo(mlx / "model.safetensors")
    (mlx / "other.safetensors").symlink_to("nowhere")
    deep = folder / "nested"
    deep.mkdir()
    (deep / "config.json").write_text("[" * 100_000)
    (deep / "model.safetensors").write_bytes(b"")
    library = ModelLibrary(coolhead_home)
    started_s = time.monotonic()
    assert ids(library) == ["a"]
    assert [broken.model_id for broken in library.damaged()] == ["nested"]
    assert time.monotonic() - started_s < 10.0


def test_library_file_without_an_architecture_is_damaged(coolhead_home: Paths) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
    (coolhead_home.models / "nothing.gguf").write_bytes(head)
    library = ModelLibrary(coolhead_home)
    assert library.specs() == ()
    (broken,) = library.damaged()
    assert "architecture" in str(broken.error)


@pytest.mark.parametrize(
    ("name", "stem", "title"),
    [
        (
            "Smollm2 135M 8k Lc100K Mix1 Ep2",
            "SmolLM2-135M-Instruct.Q4_1",
            "SmolLM2-135M-Instruct.Q4_1",
        ),
        ("Qwen3 8B", "Qwen3-8B-Q4_K_M", "Qwen3 8B"),
        ("", "mine", "mine"),
        ("model", "big-Q8_0-00001-of-00002", "big-Q8_0"),
    ],
)
def test_library_model_is_called_what_people_know_it_by(name: str, stem: str, title: str) -> None:
    header = outlined(starter()).header
    assert header is not None
    named = dataclasses.replace(
        header,
        metadata={**header.metadata, "general.name": name},
        files=(Path(f"{stem}.gguf"),),
    )
    assert spec_of(named, Path(f"{stem}.gguf")).name == title
