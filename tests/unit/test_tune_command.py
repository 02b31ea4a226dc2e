"""The command `samestep tune`: its search, its file, the tuning `best`, and what it refuses."""

import itertools
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from compare.settings.options import Settings
from compare.studies.budget import Budget
from compare.studies.cell_store import CellStore
from compare.studies.race import Race, Track
from compare.studies.tune import Limits, Search
from tests.fakebackend import plans
from tests.unit import programs
from tests.unit.programs import Program
from tests.unit.result_factory import make_result, typed

TUNE = ("tune", "--device", "cpu", "--out", "out", "--store", "store", "--batch-size", "8", "--deadline", "60")

pytestmark = pytest.mark.slow


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Program]:
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        yield program


def begin_budget() -> Budget:
    budget = Budget(600.0, 1)
    budget.begin_backend()
    return budget


def script(program: Program, monkeypatch: pytest.MonkeyPatch, **behaviours: dict[str, Any]) -> None:
    plans.register(monkeypatch, program.folder.parent / "logs", behaviours)


def read(program: Program) -> dict[str, Any]:
    return json.loads((program.folder / "out" / "tuning.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fake:compiled"], "allowed: backends such as torch and jax"),
        (["fake@HEAD"], "samestep tune fake@HEAD is not allowed; allowed: backends such as torch and jax"),
        (["fake", "--budget", "10m"], "--budget '10m' is not allowed; allowed: a number (SECONDS)"),
        (["fake", "--budget", "0"], "--budget 0 is not allowed"),
        (["fake", "--budget", "nan"], "--budget nan is not allowed"),
        (["fake", "--memory", "-1"], "--memory -1 is not allowed"),
        (["fake", "--memory", "nan"], "--memory nan is not allowed"),
        (["fake", "--memory", "inf"], "--memory inf is not allowed"),
        (["fake", "--objective", "energy"], "--objective energy needs a GPU, whose energy NVML tells"),
        (["fake", "--objective", "beauty"], "--objective 'beauty' is not allowed; allowed: time, energy"),
    ],
)
def test_it_refuses(program: Program, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str):
    script(program, monkeypatch)
    code, _, error = program.run(*TUNE, *arguments)
    assert code == 2
    assert said in " ".join(error.split())


def test_best_is_refused_without_a_winner(program: Program, monkeypatch: pytest.MonkeyPatch):
    script(program, monkeypatch)
    code, _, error = program.run("compare", "fake:best", "other", "--device", "cpu", "--store", "store")
    assert code == 2
    assert "samestep tune fake and the same options" in " ".join(error.split())


def test_the_printed_command_and_best_are_of_the_same_requests(program: Program, monkeypatch: pytest.MonkeyPatch):
    script(program, monkeypatch, fake={})
    options = ("--task", "infer", "--batch-sizes", "2,8", "--precision", "float64", "--workload", "digits-cnn")
    common = ("--device", "cpu", "--store", "store", "--deadline", "60")
    code, out, error = program.run("tune", "fake", "--out", "out", *common, *options, "--budget", "120")
    assert code == 0, out + error
    found = read(program)
    assert (found["task"], found["batch_size"]) == ("infer", 2)
    assert "request (ms)" in out
    assert "milliseconds a request" in (program.folder / "out" / "tune.svg").read_text()
    line = next(line for line in out.splitlines() if line.startswith("samestep compare"))
    assert line.split()[2] == found["winner"]["fake"]
    shown = dict(itertools.pairwise(line.split()))
    assert {name: shown[name] for name in ("--task", "--batch-sizes", "--precision", "--workload", "--deadline")} == {
        **{"--task": "infer", "--batch-sizes": "2,8", "--precision": "float64", "--workload": "digits-cnn"},
        "--deadline": "60",
    }
    assert "--budget" not in line
    assert "--out" not in line
    best = ("compare", "fake:stock", "fake:best", *common, "--rounds", "2", "--skip-agreement", "--out", "compared")
    assert program.run(*best, *options)[0] == 0
    code, _, error = program.run(*best, *options, "--batch-sizes", "8")
    assert code == 2
    assert "no winner is kept for digits-cnn (infer, float64, batch 8)" in " ".join(error.split())


def test_it_finds_certifies_and_keeps_the_fastest_knobs(program: Program, monkeypatch: pytest.MonkeyPatch):
    script(program, monkeypatch, fake={"knob_factors": {"channels-last": 0.7, "fused-optimizer": 1.2}})
    code, out, _ = program.run(*TUNE, "fake")
    assert code == 0
    found = read(program)
    winner = found["winner"]["fake"]
    assert "channels-last" in winner
    assert "fused-optimizer" not in winner
    assert found["gains"]["fake"] == pytest.approx(0.7, rel=0.02)
    by_name = {trial["contender"]: trial for trial in found["trials"]}
    assert by_name[winner]["agreement"] is True
    drawn = (program.folder / "out" / "tune.svg").read_text()
    sweeps = [json.loads(path.read_text()) for path in (program.folder / "out").glob("sweep-*/result.json")]
    measured = {all(contender["memory"] for contender in sweep["contenders"]): sweep["agreement"] for sweep in sweeps}
    assert measured[True]["status"] == "pass"
    assert measured[False]["status"] == "skipped"
    assert "winner, certified" in drawn
    assert "milliseconds a step, left is faster" in drawn
    assert (program.folder / "out" / "tune.png").read_bytes().startswith(b"\x89PNG")
    assert f"samestep compare {winner} --workload digits-cnn" in out
    code, _, _ = program.run(*COMPARE, "fake:compiled", "fake:best")
    assert code == 0
    stored = json.loads((program.folder / "compared" / "result.json").read_text())
    assert stored["spec"]["contenders"] == ["fake:compiled", winner]


COMPARE = ("compare", "--device", "cpu", "--store", "store", "--batch-size", "8", "--rounds", "3", "--out", "compared")


def test_a_faster_tuning_that_does_not_agree_is_listed_and_not_named(program: Program, monkeypatch: pytest.MonkeyPatch):
    script(
        program,
        monkeypatch,
        fake={"knob_factors": {"channels-last": 0.7}, "fault": "wrong-gradient", "only_with": "channels-last"},
    )
    code, out, _ = program.run(*TUNE, "fake")
    found = read(program)
    failed = [trial for trial in found["trials"] if trial["agreement"] is False]
    assert any("channels-last" in trial["contender"] for trial in failed)
    assert "channels-last" not in found["winner"].get("fake", "")
    assert "fail" in out
    assert code in (0, 1)


def test_the_budget_ends_a_slow_search_with_a_certified_winner(program: Program, monkeypatch: pytest.MonkeyPatch):
    script(program, monkeypatch, fake={"open_seconds": 3.0, "knob_factors": {"kept-heap": 0.7}})
    code, out, error = program.run(*TUNE, "fake", "--budget", "40")
    assert code == 0, out + error
    found = read(program)
    by_name = {trial["contender"]: trial for trial in found["trials"]}
    assert by_name[found["winner"]["fake"]]["agreement"] is True
    assert found["ended"]["fake"] == "the budget of 40 s ended the search"
    assert found["untried"]["fake"]
    assert not {f"fake:{name}" for name in found["untried"]["fake"]} & {*by_name}
    assert f"fake: not tried: {found['untried']['fake'][0]}" in " ".join(out.split())
    assert found["seconds"] < 80, error  # closing takes its time on a busy machine


def test_a_budget_without_time_for_a_trial_names_one_that_would_do(program: Program, monkeypatch: pytest.MonkeyPatch):
    script(program, monkeypatch, fake={"fault": "hang", "at": "open"})
    code, out, error = program.run(*TUNE, "fake", "--budget", "4")
    assert code == 1
    found = read(program)
    assert (found["winner"], found["trials"]) == ({}, [])
    assert found["untried"]["fake"][0] == "stock"
    assert "the budget of 4 s ended the search before anything was timed; --budget 8 may do" in " ".join(out.split())
    assert "sweep 1: stopped by the budget before there was anything to keep" in error
    assert found["seconds"] < 30


def test_best_stays_the_fastest_after_a_search_with_another_aim(program: Program, monkeypatch: pytest.MonkeyPatch):
    script(program, monkeypatch)
    code, out, error = program.run(*TUNE, "fake", "--memory", "100000", "--budget", "60")
    assert code == 0, out + error
    assert "not kept as the tuning best, which stands for the fastest" in out
    code, _, error = program.run(*COMPARE, "fake:compiled", "fake:best")
    assert code == 2
    assert "no winner is kept" in error


def test_a_screening_claims_nothing(program: Program, monkeypatch: pytest.MonkeyPatch):
    faster = {"knob_factors": {"channels-last": 0.7}}
    script(program, monkeypatch, fake=faster, other=faster)
    code, out, _ = program.run(*TUNE, "fake", "other", "--screen")
    assert code == 0
    assert read(program)["winner"] == {}
    tried = [trial["contender"].replace("other:", "fake:") for trial in read(program)["trials"]]
    assert sorted(tried) == sorted(2 * list(set(tried)))
    assert all(trial["agreement"] is None for trial in read(program)["trials"])
    assert "claims nothing" in out


@pytest.mark.parametrize("status", ["pass", "fail"])
def test_the_default_is_certified_before_the_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str):
    asked = list[list[str]]()
    result = make_result()
    result["agreement"]["status"] = status

    def compare(self: Search, names: list[str], *, rounds: int | None, agreement: bool) -> Any:
        asked.append(names)
        assert agreement
        return typed(result), 1.0

    monkeypatch.setattr(Search, "_compare", compare)
    search = Search(Settings(), Limits(), CellStore(tmp_path / "store"), [], tmp_path)
    race, agrees = Race(Track("torch", "cpu", "digits-cnn", "float32")), status == "pass"
    assert search._certify_default(race, begin_budget()) == agrees  # pyright: ignore[reportPrivateUsage]
    assert asked == [["torch:stock", "torch:compiled"]]
    assert race.leader == "compiled"
    assert race.plan_sweep()[0] == "compiled"
    assert not {"stock", "compiled"} & {*race.plan_sweep()[1:]}
    noted = [(trial.ratio, trial.agreement) for trial in search._trials.values()]  # pyright: ignore[reportPrivateUsage]
    assert (1.0, True if agrees else None) in noted


def test_the_fastest_tuning_is_certified_even_if_the_time_was_over_before_it_led(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = list[list[str]]()

    def compare(self: Search, names: list[str], *, rounds: int | None, agreement: bool) -> Any:
        asked.append(names)
        return None, 1.0

    monkeypatch.setattr(Search, "_compare", compare)
    race = Race(Track("torch", "cpu", "digits-cnn", "float32"))
    race.note(["stock", "compiled"], {"stock": 1.0, "compiled": 0.9})
    race.note(["compiled", "compiled+channels-last"], {"compiled": 1.0, "compiled+channels-last": 0.5})
    search = Search(Settings(), Limits(), CellStore(tmp_path / "store"), [], tmp_path)
    found = search._find_winner(race, begin_budget(), default_agrees=True)  # pyright: ignore[reportPrivateUsage]
    assert found == ("compiled", 1.0)
    assert asked[0] == ["torch:compiled", "torch:compiled+channels-last"]


def test_a_tuning_wins_if_the_default_takes_more_memory_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    result = make_result()
    for contender, mebibytes in zip(result["contenders"], (300, 100), strict=True):
        contender["memory"]["live_peak_bytes"] = mebibytes * 2**20
    monkeypatch.setattr(Search, "_compare", lambda *_, **__: (typed(result), 1.0))
    race = Race(Track("torch", "cpu", "digits-cnn", "float32"), leader="stock+channels-last")
    race.times = {"stock+channels-last": 1.0}
    limits = Limits(memory_bytes=200 * 2**20)
    search = Search(Settings(), limits, CellStore(tmp_path / "store"), [], tmp_path)
    winner = search._find_winner(race, begin_budget(), default_agrees=False)  # pyright: ignore[reportPrivateUsage]
    assert winner is not None
    assert winner[0] == "stock+channels-last"
