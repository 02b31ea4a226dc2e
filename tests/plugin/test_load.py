"""What the plugin costs a pytest that makes no comparison: next to nothing."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["pytester"]

LIGHT = 0.020
"""Processor seconds that the plugin may add to pytest's start."""

MEASURED = """
import json, sys, time
import _pytest.config
config = _pytest.config.get_config()
before, start = set(sys.modules), time.process_time()
config.pluginmanager.import_plugin("compare.pytest_plugin")
seconds = time.process_time() - start
json.dump([seconds, sorted(set(sys.modules) - before)], sys.stdout)
"""


def loaded(compiled: Path | None = None) -> tuple[float, list[str]]:
    """Return the processor seconds that loading the plugin takes in a fresh process, and the modules that it brings.

    With `compiled` that folder keeps compiled modules, as an installed samestep has them.
    """
    kept = {"PYTHONPYCACHEPREFIX": str(compiled), "PYTHONDONTWRITEBYTECODE": ""} if compiled else {}
    process = subprocess.run(
        [sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True, env=os.environ | kept
    )
    seconds, modules = json.loads(process.stdout)
    return seconds, modules


def test_pytest_finds_the_plugin() -> None:
    (found,) = importlib.metadata.entry_points(group="pytest11", name="samestep")
    assert found.value == "compare.pytest_plugin"


def test_loading_brings_nothing_but_the_plugins_own_files() -> None:
    _, modules = loaded()
    assert {module for module in modules if module.split(".")[0] != "compare"} == set()
    own = {module for module in modules if not module.startswith("compare.plugin.")}
    assert own == {
        "compare",
        "compare.settings",
        "compare.settings.kinds",
        "compare.settings.options",
        "compare.plugin",
        "compare.pytest_plugin",
    }


def test_loading_takes_no_time_to_speak_of(tmp_path: Path) -> None:
    # The best of several: other programs empty caches, and none takes any time away.
    assert min(loaded(tmp_path)[0] for _ in range(6)) < LIGHT


def test_a_run_without_comparisons_stays_light(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        HEAVY = {"jax", "jinja2", "matplotlib", "numpy", "psutil", "pynvml", "rich", "scipy", "torch", "typer"}

        def test_ordinary():
            assert not HEAVY & set(sys.modules)

        def test_comparison(samestep):
            assert False
        """
    )
    result: Any = pytester.runpytest_subprocess("-p", "no:hypothesispytest")
    result.assert_outcomes(passed=1, skipped=1)
