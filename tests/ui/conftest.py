"""Widget tests run off screen, over a core that only pretends."""

from collections.abc import Iterator

import pytest

from tests.ui.stand_in_core import StandInCore


@pytest.fixture(scope="session")
def qapp_args() -> list[str]:
    return ["coolhead-tests", "-platform", "offscreen"]


@pytest.fixture
def core() -> Iterator[StandInCore]:
    made = StandInCore().start()
    yield made
    made.stop()
