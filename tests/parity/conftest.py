"""Fixtures of all tests in this folder."""

from collections.abc import Iterator

import pytest

from tests.parity.devices import Recorder
from tests.unoptimised import unoptimised as unoptimised


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    made = Recorder(tmp_path_factory.mktemp("devices"))
    yield made
    made.close()
