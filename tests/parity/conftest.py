"""Fixtures of all tests in this folder."""

from collections.abc import Iterator

import pytest
from torch._inductor.async_compile import AsyncCompile

from compare.settings import tunings
from tests.parity.devices import Recorder
from tests.unoptimised import unoptimised as unoptimised
from torchbackend import tuning


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    made = Recorder(tmp_path_factory.mktemp("devices"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def compiler() -> None:
    """Let torch find its probes of this machine and its precompiled headers in the folder that all tests share."""
    tuning.prepare(tunings.resolve("torch", "compiled", "cpu", "digits-cnn"), "cpu", exchanges=False)


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave kernels uncompiled, and let them compute nothing: a C++ compiler takes most of the time."""
    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", lambda *_: lambda *_: None)
