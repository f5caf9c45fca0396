"""The models page, off screen: the list, load and unload, deleting, fetching."""

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QMessageBox, QPushButton
from pytestqt.qtbot import QtBot

from app.core.errors import DoesNotFit, DownloadFailed
from app.core.handle import LoadModel, UnloadModel
from app.core.lifecycle import AppState, WorkerState
from app.core.models.catalogue import CatalogueEntry
from app.core.models.download import Progress
from app.core.paths import Paths
from app.ui.activity import ActivityLog
from app.ui.bridge import Bridge
from app.ui.model_rows import CatalogueRow, InstalledRow
from app.ui.models_page import ModelsPage
from app.ui.panel import Panel
from app.ui.pulls import Pulls
from tests.ui import imagined
from tests.ui.stand_in_core import MIB, StandInCore

WAIT_MS = 20_000

pytestmark = pytest.mark.qt_log_ignore("This plugin does not support")


class Source:
    """A download that does what the test says, on the thread that fetches."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.was_cancelled = False
        self.error: DownloadFailed | None = None

    def fetch(
        self, entry: CatalogueEntry, paths: Paths, progress: Progress, cancelled: threading.Event
    ) -> Path:
        progress(25 * MIB, 100 * MIB)
        while not self.go_on.wait(0.02):
            if cancelled.is_set():
                self.was_cancelled = True
                raise DownloadFailed("The download was cancelled; nothing of it is left.")
        if self.error is not None:
            raise self.error
        return paths.models / entry.file


@pytest.fixture
def core(coolhead_home: Paths) -> Iterator[StandInCore]:
    made = StandInCore(imagined.snapshot(coolhead_home.models)).start()
    yield made
    made.stop()


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def page(
    core: StandInCore, qtbot: QtBot, coolhead_home: Paths, source: Source
) -> Iterator[ModelsPage]:
    bridge = Bridge(core.handle)
    pulls = Pulls(bridge, coolhead_home, source.fetch)
    made = ModelsPage(bridge, coolhead_home, pulls)
    qtbot.addWidget(made)
    bridge.snapshot_changed.connect(made.show_snapshot)
    made.show_snapshot(core.handle.snapshot)
    made.show()
    yield made
    source.go_on.set()
    pulls.close()
    bridge.close()


def _row(page: ModelsPage) -> InstalledRow:
    return page.installed[imagined.MODEL_ID]


def _starter(page: ModelsPage) -> CatalogueRow:
    return page.offered[0]


def test_models_page_lists_what_is_installed_with_size_place_and_state(
    page: ModelsPage, core: StandInCore, qtbot: QtBot, coolhead_home: Paths
) -> None:
    row = _row(page)
    assert row.title.text() == imagined.MODEL_ID
    assert row.facts.text() == "4.6 GiB, not loaded"
    assert row.load.isVisible()
    assert not row.unload.isVisible()
    core.put(workers=(imagined.worker(),))
    qtbot.waitUntil(row.unload.isVisible, timeout=WAIT_MS)
    assert row.facts.text() == "4.6 GiB, loaded: 2 slots × 8,192 tokens, 5.4 GiB taken"
    loading = dataclasses.replace(imagined.worker(), state=WorkerState.STARTING, load_fraction=0.42)
    core.put(workers=(loading,))
    qtbot.waitUntil(lambda: "loading 42 %" in row.facts.text(), timeout=WAIT_MS)
    core.put(models=(), workers=())
    qtbot.waitUntil(lambda: not page.installed, timeout=WAIT_MS)
    assert page.nothing.isVisible()


def test_models_page_load_and_unload_are_sent_and_a_refusal_is_said(
    page: ModelsPage, core: StandInCore, qtbot: QtBot
) -> None:
    row = _row(page)
    core.refusals[LoadModel] = DoesNotFit("It needs 20 GiB of 10 GiB.")
    row.load.click()
    qtbot.waitUntil(page.trouble.isVisible, timeout=WAIT_MS)
    assert core.received(LoadModel) == [LoadModel(imagined.MODEL_ID)]
    assert "It needs 20 GiB" in page.trouble.text()
    core.put(workers=(imagined.worker(),))
    qtbot.waitUntil(row.unload.isVisible, timeout=WAIT_MS)
    row.unload.click()
    assert not page.trouble.isVisible()
    qtbot.waitUntil(lambda: bool(core.received(UnloadModel)), timeout=WAIT_MS)
    core.put(state=AppState.STOPPED, workers=())
    qtbot.waitUntil(lambda: row.load.isVisible() and not row.load.isEnabled(), timeout=WAIT_MS)


def _click_in_question(page: ModelsPage, text: str) -> None:
    questions = [one for one in page.findChildren(QMessageBox) if one.isVisible()]
    assert len(questions) == 1
    buttons = {one.text().replace("&", ""): one for one in questions[0].findChildren(QPushButton)}
    buttons[text].click()


def test_models_page_delete_asks_first_and_waits_for_the_worker(
    page: ModelsPage, core: StandInCore, qtbot: QtBot
) -> None:
    path = Path(core.handle.snapshot.models[0].path)
    core.put(workers=(imagined.worker(),))
    qtbot.waitUntil(_row(page).unload.isVisible, timeout=WAIT_MS)
    _row(page).delete.click()
    _click_in_question(page, "Cancel")
    assert core.received(UnloadModel) == []
    _row(page).delete.click()
    _click_in_question(page, "Delete")
    qtbot.waitUntil(lambda: bool(core.received(UnloadModel)), timeout=WAIT_MS)
    assert path.exists()
    core.put(workers=())
    qtbot.waitUntil(lambda: not path.exists(), timeout=WAIT_MS)


def test_models_page_does_not_delete_what_lies_elsewhere(
    page: ModelsPage, core: StandInCore, qtbot: QtBot, tmp_path: Path
) -> None:
    elsewhere = imagined.model(tmp_path / "mine")
    core.put(models=(elsewhere,))
    qtbot.waitUntil(lambda: _row(page).model.path == elsewhere.path, timeout=WAIT_MS)
    assert not _row(page).delete.isEnabled()
    assert _row(page).folder.isEnabled()


def test_models_page_pull_shows_progress_and_ends_as_installed(
    page: ModelsPage, source: Source, qtbot: QtBot
) -> None:
    row = _starter(page)
    assert "94 MiB" in row.facts.text()
    row.pull.click()
    qtbot.waitUntil(lambda: row.bar.value() == 250, timeout=WAIT_MS)
    assert row.bar.text() == "25 MiB / 100 MiB"
    assert row.cancel.isVisible()
    assert not row.pull.isVisible()
    source.go_on.set()
    qtbot.waitUntil(row.there.isVisible, timeout=WAIT_MS)
    assert not row.bar.isVisible()
    assert not page.trouble.isVisible()


def test_models_page_pull_that_fails_or_is_cancelled_says_so_and_may_be_tried_again(
    page: ModelsPage, source: Source, qtbot: QtBot
) -> None:
    row = _starter(page)
    row.pull.click()
    qtbot.waitUntil(row.cancel.isVisible, timeout=WAIT_MS)
    row.cancel.click()
    qtbot.waitUntil(lambda: "cancelled" in page.trouble.text(), timeout=WAIT_MS)
    assert source.was_cancelled
    assert row.pull.isVisible()
    source.error = DownloadFailed("The disk is full.")
    source.go_on.set()
    row.pull.click()
    qtbot.waitUntil(lambda: "The disk is full." in page.trouble.text(), timeout=WAIT_MS)


def test_pulls_closed_while_one_runs_have_ended_it(
    core: StandInCore, source: Source, qtbot: QtBot, coolhead_home: Paths
) -> None:
    bridge = Bridge(core.handle)
    pulls = Pulls(bridge, coolhead_home, source.fetch)
    pulls.start(CatalogueEntry("a", file="a.gguf"))
    bridge.close()
    pulls.close()
    assert source.was_cancelled


def test_models_page_file_of_a_repository_counts_as_installed(
    page: ModelsPage, core: StandInCore, qtbot: QtBot
) -> None:
    row = next(row for row in page.offered if row.entry.name == "qwen3-4b")
    assert not row.there.isVisible()
    model = dataclasses.replace(core.handle.snapshot.models[0], path="/models/Qwen3-4B-Q4_K_M.gguf")
    core.put(models=(model,))
    qtbot.waitUntil(row.there.isVisible, timeout=WAIT_MS)


def test_models_page_names_a_file_that_is_no_model(
    page: ModelsPage, core: StandInCore, qtbot: QtBot, coolhead_home: Paths
) -> None:
    assert not page.damaged.isVisible()
    (coolhead_home.models / "broken.gguf").write_bytes(b"not a model")
    core.put(models=())
    qtbot.waitUntil(page.damaged.isVisible, timeout=WAIT_MS)
    assert "broken.gguf" in page.damaged.text()


def test_memory_page_without_a_model_leads_to_the_models_page(
    core: StandInCore, qtbot: QtBot, coolhead_home: Paths
) -> None:
    core.put(models=())
    bridge = Bridge(core.handle)
    panel = Panel(bridge, ActivityLog(), coolhead_home, imagined.machine)
    qtbot.addWidget(panel)
    panel.open_page("Memory")
    qtbot.waitUntil(panel.memory.fetch.isVisible, timeout=WAIT_MS)
    assert "Models page" in panel.memory._verdict.text()
    panel.memory.fetch.click()
    assert panel.models.isVisible()
    panel.close()
    bridge.close()
