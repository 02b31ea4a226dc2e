"""The example suite with both frameworks on a CPU, as its reader would run it."""

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from compare.results import result_file
from tests.fakebackend import plans

EXAMPLE = ["-m", "pytest", "examples/pytest", "-p", "tests.plugin.busy_machine", "--samestep-device=cpu"]


@pytest.mark.slow
def test_the_example_suite_compares_both_frameworks(tmp_path: Path) -> None:
    asked = [
        "--benchmark",
        "--samestep-rounds=2",
        f"--samestep-report={tmp_path}",
        f"--benchmark-json={tmp_path}/saved",
    ]
    process = subprocess.run(
        [sys.executable, *EXAMPLE, *asked], cwd=plans.ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "agreement in float32: pass" in process.stdout

    (path,) = tmp_path.glob("*/result.json")
    measured = {each["name"]: each["step_seconds"]["samples"] for each in result_file.load(path)["contenders"]}
    assert list(measured) == ["torch:stock", "jax:stock"]
    saved = json.loads((tmp_path / "saved").read_text())
    assert {"torch", "jax", "flax"} <= saved["machine_info"]["samestep"]["packages"].keys()
    for row in saved["benchmarks"]:
        assert row["group"] == "digits-cnn float32 batch 64"
        assert row["stats"]["data"] == list(chain.from_iterable(measured[row["params"]["contender"]]))
        assert row["extra_info"]["memory"]["process_bytes"] > 0
    assert {row["params"]["contender"] for row in saved["benchmarks"]} == set(measured)
