"""Fetching a build into a folder of its own, from a local index, and what is refused."""

import dataclasses
import json
import zipfile
from pathlib import Path

import pytest

from app.__main__ import main
from app.core.backends import builds
from app.core.backends.builds import Build, build_for, command, install, installed, remove
from app.core.backends.engine_xllamacpp import Xllamacpp
from app.core.backends.llama_cpp import LlamaCppBackend
from app.core.errors import EngineMissing
from app.core.hardware.machine import Gpu, Machine
from app.core.paths import Paths

MACHINE = Machine(16 << 30, 8 << 30)


def with_driver(version: str) -> Machine:
    gpu = Gpu("CUDA0", "NVIDIA H200", 1 << 37, 1 << 37, driver=version)
    return dataclasses.replace(MACHINE, gpus=(gpu,))


def wheel(folder: Path, name: str, version: str) -> None:
    """A wheel with one empty module."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


def test_build_for_cuda_follows_the_driver() -> None:
    assert build_for("cuda", with_driver("580.65.06")).index_url.endswith("/cu132")
    assert build_for("cuda", with_driver("550.54.14")).index_url.endswith("/cu128")
    with pytest.raises(EngineMissing, match="470"):
        build_for("cuda", with_driver("470.10"))
    assert "No NVIDIA driver" in build_for("cuda", MACHINE).note


def test_build_for_a_gpu_comes_from_where_the_engines_documentation_says() -> None:
    found = builds.documented_indexes()
    assert {"vulkan"} < set(found)
    assert all(url.startswith("https://") and url.endswith(name) for name, url in found.items())
    known = {"cu130": "u/cu130", "cu132": "u/cu132", "rocm-6.4.1": "u/6", "rocm-7.2.4": "u/7"}
    assert build_for("cuda", with_driver("590.1"), indexes=known).index_url == "u/cu132"
    rocm = build_for("rocm", MACHINE, indexes=known)
    assert (rocm.index_url, rocm.note) == ("u/7", "Needs ROCm 7.2.4.")


def test_build_for_a_gpu_without_a_known_index_asks_for_one(tmp_path: Path) -> None:
    for kind in ("cuda", "rocm", "vulkan"):
        build = build_for(kind, with_driver("550.1"), indexes={})
        with pytest.raises(EngineMissing, match="--index"):
            command(build, tmp_path)
        assert "http://127.0.0.1:1/simple" in command(build, tmp_path, "http://127.0.0.1:1/simple")


def test_index_for_a_newer_cuda_than_the_driver_runs_is_refused() -> None:
    builds.check_driver("https://index.test/whl/cu132", with_driver("580.1"))
    builds.check_driver("https://index.test/whl/cu128", with_driver("550.1"))
    builds.check_driver("wheels", with_driver("470.1"))
    builds.check_driver("https://index.test/whl/cu132", MACHINE)
    with pytest.raises(EngineMissing, match=r"CUDA 13.*580.*550"):
        builds.check_driver("https://index.test/whl/cu132/", with_driver("550.1"))


def test_verb_engine_installs_lists_and_removes(
    coolhead_home: Paths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(tmp_path / "wheels", "xllamacpp", builds._own_version())
    source = str(tmp_path / "wheels")
    assert main(["engine", "install", "cpu", "--index", source, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert f"--no-index --find-links {source} xllamacpp==" in told
    assert not coolhead_home.engines.exists()
    assert main(["engine", "install", "cpu", "--index", source]) == 0
    assert main(["engine", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert str(coolhead_home.engines / "cpu") in [each["path"] for each in listed["engines"]]
    assert main(["engine", "remove", "cpu"]) == 0
    assert main(["engine", "remove", "cpu"]) == 1


def test_verb_engine_takes_the_index_of_the_settings(
    coolhead_home: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "http://127.0.0.1:1/whl/vulkan"
    assert main(["settings", "set", "engine.index", url]) == 0
    assert main(["engine", "install", "vulkan", "--dry-run"]) == 0
    assert f"--index-url {url} " in capsys.readouterr().out


def test_build_for_every_kind_is_pinned_or_bounded_and_others_are_refused() -> None:
    for kind in builds.KINDS:
        build = build_for(kind, MACHINE, "-DGGML_CUDA=on")
        assert any(mark in build.requirement[-1] for mark in ("==", ">="))
    assert "-DGGML_CUDA=on" in build_for("llama-cpp-python", MACHINE, "-DGGML_CUDA=on").note
    with pytest.raises(EngineMissing):
        build_for("tpu", MACHINE)


def test_command_takes_the_builds_source_or_the_one_given(tmp_path: Path) -> None:
    build = build_for("vulkan", MACHINE)
    assert command(build, tmp_path)[-2] == build.index_url
    assert "--no-index" in command(build, tmp_path, str(tmp_path))
    assert command(build, tmp_path, "http://127.0.0.1:1/simple")[-2] == "http://127.0.0.1:1/simple"
    assert "--index-url" not in command(build_for("cpu", MACHINE), tmp_path)


def test_install_from_a_local_index_is_found_by_the_backend_and_removed(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "xllamacpp", "1.2.3")
    engines = tmp_path / "engines"
    build = Build("vulkan", "xllamacpp", ("xllamacpp==1.2.3",))
    done = install(build, engines, str(tmp_path / "wheels"))
    assert installed(engines) == (done,)
    assert (done.folder / "xllamacpp.py").exists()
    backend = LlamaCppBackend(engines_folder=engines)
    folders = [
        engine.find(with_devices=False).folder
        for engine in backend._engines()
        if isinstance(engine, Xllamacpp)
    ]
    assert folders == ["", str(done.folder)]
    assert remove("vulkan", engines)
    assert not remove("vulkan", engines)
    assert installed(engines) == ()


def test_install_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "xllamacpp", "1.2.3")
    build = Build("cpu", "xllamacpp", ("xllamacpp==1.2.3",))
    before = install(build, tmp_path, str(tmp_path / "wheels"))
    for run in (lambda argv: 1, lambda argv: 0):
        with pytest.raises(EngineMissing):
            install(build, tmp_path, run=run)
    assert installed(tmp_path) == (before,)
    assert not list(tmp_path.glob(".*.new"))
