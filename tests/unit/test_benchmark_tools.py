"""Tools for GPU machines: the parts that run on any machine."""

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import answer_times, kernel_times, timeline
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
    assert not [line for line in told if " block" in line and "ahead" not in line]
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


def _result(estimate: float, low: float, high: float) -> dict[str, Any]:
    ratio = {"estimate": estimate, "low": low, "high": high}
    return {"comparisons": [{"ratio": ratio, "verdict": "FASTER"}], "spec": {"rounds": 5}, "voided": [1]}


def test_two_ways_agree_if_each_ratio_lies_in_the_other_s_interval() -> None:
    ours = _result(0.9, 0.88, 0.92)
    assert answer_times.agree(ours, _result(0.91, 0.89, 0.93))
    assert not answer_times.agree(ours, _result(0.91, 0.905, 0.915))
    assert not answer_times.agree(_result(0.91, 0.905, 0.915), ours)
    assert not answer_times.agree(ours, {"comparisons": [{"ratio": None}]})
    assert answer_times.differs_by_chance(ours, _result(0.91, 0.905, 0.915))
    assert not answer_times.differs_by_chance(ours, _result(0.96, 0.95, 0.97))
    assert not answer_times.differs_by_chance(ours, {"comparisons": [{"ratio": None}]})


def test_the_table_of_answer_times_has_each_run_first_and_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stores = list[Path]()

    def ask(arguments: tuple[str, ...], store: Path, device: str) -> answer_times.Answer:
        stores.append(store)
        return answer_times.Answer(60.0 / len(stores), 90.0, 0, _result(0.9, 0.88, 0.92))

    monkeypatch.setattr(answer_times, "ask", ask)
    assert answer_times.main(["table"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| default | 60 | 30 | 90 | 90 | exit 0, FASTER, 5 rounds, 1 void |"
    ]
    assert stores[0] == stores[1]
    assert answer_times.main(["agree", "--device", "cpu", "digits-cnn"]) == 0
    assert "agree" in capsys.readouterr().out
