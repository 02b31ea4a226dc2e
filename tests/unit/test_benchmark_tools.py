"""Tools for GPU machines: the parts that run on any machine."""

import re
from collections.abc import Generator
from pathlib import Path

import pytest

from benchmarks import kernel_times, timeline
from compare.base.interface import Kernel
from tests.unit import programs
from tests.unit.programs import Program


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Program]:
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        yield program


def test_a_timeline_tells_what_children_and_judges_did(program: Program) -> None:
    arguments = ("compare", "fake", "other", "--rounds", "2", "--out", "out")
    code, _, error = program.run(*arguments, main=timeline.main)
    assert code == 0
    told = re.findall(r"^ *\d+\.\d +\d+\.\d +\d+\.\d s  (.*)$", error, re.MULTILINE)
    children = {re.sub(r"^\d+ ", "", line) for line in told}
    assert {"fake: start", "other: start", "judge other", "fake: warm_up steps None"} <= children
    assert not any(" block" in line for line in told)
    assert (program.folder / "out" / "result.json").is_file()


def test_a_profile_tells_for_how_long_a_kernel_runs_alone() -> None:
    kernels = [
        Kernel("cuda:0", name, begin, end)
        for name, begin, end in (("ncclSum", 0, 3), ("add", 2, 4), ("add", 3.5, 6), ("ncclSum", 8, 9))
    ]
    found = kernel_times.table(kernels, 2, 5.0)
    assert [[*line.split()[:4], line.split()[-1]] for line in found.splitlines()[:3]] == [
        ["2250.0000", "ms", "1500.0000", "alone", "elementwise"],
        ["2000.0000", "ms", "1500.0000", "alone", "communication"],
        ["1500.0000", "ms", "1500.0000", "alone", "runs"],
    ]
