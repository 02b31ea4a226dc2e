"""A user's folder of tests, run as its owner runs it: by pytest in a process of its own, with the plugin installed."""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fakebackend import plans
from tests.plugin import session_server

SETTINGS = 'contenders=["fake", "other"], device="cpu", epochs=1'

SUITE = f"""
import pytest

def test_ordinary():
    pass

def test_ratio(samestep):
    assert samestep("digits-cnn", {SETTINGS}).ratio("other").high < 1.05

@pytest.mark.samestep("digits-cnn", {SETTINGS})
def test_step(contender):
    assert contender.status == "ok"
"""

REPORT = "*fake*other*"
"""A line of the section that the plugin adds."""


class Suite:
    """Runs pytest on a folder of tests. Warnings are errors in it. `log` gets a line for every made-up comparison."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pytester, self._monkeypatch = pytester, monkeypatch
        self.folder, self._numbers = pytester.path, itertools.count()
        self.log = self.folder / "comparisons.log"
        pytester.makeini("[pytest]\nfilterwarnings = error\n")
        self.environment(plans.environment(self.folder, {}) | {"MADE_UP_LOG": str(self.log)})

    def environment(self, variables: Mapping[str, str]) -> None:
        for name, value in variables.items():
            self._monkeypatch.setenv(name, value)

    def write(self, text: str) -> None:
        self._pytester.makepyfile(test_suite=text)

    def hooks(self, text: str) -> None:
        self._pytester.makeconftest(text)

    def run(self, *arguments: str, made_up: bool = True) -> pytest.RunResult:
        """Run pytest, with made-up results or with real runs of the fake backends."""
        plugins = ["tests.fakebackend.registered", *(["tests.plugin.made_up"] if made_up else [])]
        # Hypothesis's plugin takes longer to load than most of these suites to run.
        given = [word for plugin in [*plugins, "no:hypothesispytest"] for word in ("-p", plugin)]
        if "-n" in arguments:
            return self._pytester.runpytest_subprocess(*given, *arguments, timeout=120)
        place = self._pytester.path / f"session-{next(self._numbers)}"
        return session_server.find_server().run([f"--basetemp={place}", *given, *arguments], self.folder, 120)

    def comparisons(self) -> list[str]:
        """Return a line for every made-up comparison so far: contenders, rounds and precision."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def only(self, pattern: str) -> Path:
        (path,) = self.folder.glob(pattern)
        return path


def rows(saved: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return pytest-benchmark's rows by name."""
    return {row["name"]: row for row in saved["benchmarks"]}
