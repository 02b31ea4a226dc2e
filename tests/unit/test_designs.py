"""Rounds in their three designs, and rounds that are void, with the fake backends."""

import math
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compare.base.interface import Memory, Refused
from compare.base.interruptions import HeldSignals
from compare.execution import (
    build_result,
    phases,
    ready_children,
    round_validity,
    rounds,
    timed_block,
    timed_round,
    usage,
)
from compare.execution.launcher import Launcher, Progress
from compare.execution.run_state import RunState
from compare.execution.telemetry import Telemetry
from compare.execution.timed_block import Busy
from compare.machine import cpu, memory
from compare.reproduce import recompute
from compare.results import model, result_file, verdicts
from compare.settings.plan import Plan
from tests.fakebackend import plans
from tests.unit.result_factory import typed
from tests.unit.stage import Stage

pytestmark = pytest.mark.slow

NOISE = {"step_noise": 0.001, "seed": 1}


def run(
    folder: Path, patch: pytest.MonkeyPatch, script: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    return Stage(folder, patch).run(script=script, **{"cold_compile": True, **changes})  # processes have fixed numbers


def working(folder: Path, place: str = "open") -> list[str]:
    """Return the names of the contenders in the order in which their processes of the rounds came to a place."""
    lines = [line.split() for line in (folder / "calls.log").read_text().splitlines()]
    return [name for name, number, _, where in lines if where == place and int(number) >= 3]


def windows(result: dict[str, Any], number: int) -> list[list[list[float]]]:
    return [each["step_seconds"]["windows"][number] for each in result["contenders"]]


def _result(plan: Plan) -> dict[str, Any]:
    state = phases.run_comparison(plan, lambda *step: None, HeldSignals())
    return model.to_json(build_result.build(state, ["samestep"]))


def test_alternating_blocks_of_a_round_interleave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(tmp_path, monkeypatch)
    assert (result["spec"]["design"], result["spec"]["design_reason"]) == ("alternating", None)
    for number in (0, 1):
        a, b = windows(result, number) if number == 0 else windows(result, number)[::-1]
        assert a[0][1] <= b[0][0] <= b[1][1] <= a[1][0], "A B B A, then B A A B"
        assert sorted([*a, *b]) == sorted([*a, *b], key=lambda window: window[1]), "one at a time"


@pytest.mark.parametrize(("capped", "is_capped"), [((1, 2, 3), True), ((), False), ((1,), True), ((2, 3), False)])
def test_at_the_power_limit_a_block_lasts_a_period_of_the_power_control(
    capped: tuple[int, ...], is_capped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[object]()
    time_round = timed_round.time_round

    def watch(*arguments: Any, **options: Any) -> bool:
        started.append(arguments)
        return time_round(*arguments, **options)

    monkeypatch.setattr(timed_round, "time_round", watch)
    monkeypatch.setattr(Telemetry, "is_power_capped", lambda _self, _since: len(started) in capped)
    monkeypatch.setattr(timed_round, "CONTROL_SECONDS", 0.3)
    result = run(tmp_path, monkeypatch, rounds=3)
    for times in (contender["step_seconds"] for contender in result["contenders"]):
        assert [len(blocks) for blocks in times["samples"]] == [2 if is_capped else 6] * 3
        seconds = times["estimate"] * times["steps_per_block"]
        assert (0.25 < seconds < 0.35) == is_capped, seconds
    assert result["comparisons"][0]["verdict"] == "EQUIVALENT"


def test_turns_take_every_other_contender_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(tmp_path, monkeypatch, design="turns", rounds=3)
    assert working(tmp_path) == ["fake", "other", "other", "fake", "fake", "other"]
    a, b = windows(result, 0)
    assert a[-1][1] < b[0][0]
    assert result["comparisons"][0]["verdict"] == "EQUIVALENT"


def test_sequential_rounds_are_named_an_invalid_design(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(tmp_path, monkeypatch, design="sequential")
    assert working(tmp_path) == ["fake", "fake", "other", "other"]
    (comparison,) = result["comparisons"]
    assert comparison["verdict"] == "INVALID"
    assert comparison["reason"].startswith("invalid design: all rounds of one contender ran before the other's")
    assert not verdicts.claim_failed(typed(result)), "it was asked for"


def test_contenders_that_do_not_fit_together_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The second process of the rounds runs out of memory beside its partner. Later processes run alone.
    result = run(tmp_path, monkeypatch, {"other": {"fault": "oom", "at": "open", "process": 4}}, rounds=3)
    assert result["spec"]["design"] == "turns"
    assert result["spec"]["design_reason"] == "from round 2 on: the contenders do not fit in memory together"
    assert [each["status"] for each in result["contenders"]] == ["ok", "ok"]
    assert [len(each["step_seconds"]["samples"]) for each in result["contenders"]] == [3, 3]
    assert result["comparisons"][0]["rounds"] == 3


def test_a_round_that_was_tried_in_vain_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_children, "count_at_once", lambda processes: 0)
    plans.register(monkeypatch, tmp_path, {"other": {"fault": "oom", "at": "wait", "process": 3, "visit": 30}})
    plan = plans.make(tmp_path / "out", ("fake", "other"), rounds=2, cold_compile=True)

    measure = usage.measure

    def noted(launcher: Launcher, outcomes: RunState, progress: Progress) -> None:
        measure(launcher, outcomes, progress)
        outcomes.runs[1].reason = "done again alone"

    monkeypatch.setattr(usage, "measure", noted)
    outcomes = phases.run_comparison(plan, lambda *step: None, HeldSignals())
    assert outcomes.design == "turns"
    assert [(each.status, each.reason) for each in outcomes.runs] == [("ok", None), ("ok", "done again alone")]
    assert [len(each.cached_compile_seconds) for each in outcomes.runs] == [2, 2]


def test_a_round_that_is_interrupted_when_memory_has_run_out_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_children, "count_at_once", lambda processes: 0)
    plans.register(monkeypatch, tmp_path, {"other": {"fault": "oom", "at": "wait", "process": 3, "visit": 30}})
    readings = iter([cpu.Reading(0, 0, 0)])

    def interrupted(_: object) -> cpu.Reading:
        try:
            return next(readings)
        except StopIteration:  # all blocks of the round are done, or have failed
            raise KeyboardInterrupt from None

    monkeypatch.setattr(cpu, "read", interrupted)
    plan = plans.make(tmp_path / "out", ("fake", "other"), rounds=2, cold_compile=True)
    outcomes = phases.run_comparison(plan, lambda *step: None, held := HeldSignals())
    assert isinstance(held.pending, KeyboardInterrupt)
    assert outcomes.rounds == []
    assert [(each.status, each.reason, each.unsteady) for each in outcomes.runs] == [("ok", None, [])] * 2


def test_contenders_of_which_one_s_memory_is_not_known_are_tried_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans.register(monkeypatch, tmp_path)
    monkeypatch.setattr(memory, "read_device_bytes", lambda device: 100)
    plan = plans.make(tmp_path / "out", ("fake", "other"))
    outcomes = RunState.begin(plan)
    for outcome, size in zip(outcomes.runs, (150, None), strict=True):
        outcome.memory = Memory(process_bytes=size)
    assert rounds._describe_excess(outcomes) is None


def test_in_turns_the_most_that_others_did_beside_any_contender_is_the_round_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = iter([0.5, 0.0, 0.25, 0.75])
    monkeypatch.setattr(cpu, "count_foreign_cores", lambda before, after: next(kept))
    result = run(tmp_path, monkeypatch, design="turns")
    assert result["telemetry"]["foreign_cores"] == [0.5, 0.75]


def test_contenders_that_would_not_fit_together_are_not_tried_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "read_device_bytes", lambda device: 2**20)
    result = run(tmp_path, monkeypatch, rounds=3)
    assert result["spec"]["design"] == "turns"
    told = r"from round 1 on: the contenders do not fit in memory together: alone they held 0\.\d GiB in all, of 0\.0"
    assert re.fullmatch(told, result["spec"]["design_reason"])
    assert working(tmp_path) == ["fake", "other", "other", "fake", "fake", "other"]
    assert result["comparisons"][0]["verdict"] == "EQUIVALENT"


def test_what_nobody_tells_is_no_reason_to_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = usage.combine_memory
    monkeypatch.setattr(memory, "read_device_bytes", lambda device: 2**20)
    monkeypatch.setattr(usage, "combine_memory", lambda use: figures(replace(use, process=None)))
    result = run(tmp_path, monkeypatch)
    assert result["spec"]["design"] == "alternating"
    assert [each["memory"]["process_bytes"] for each in result["contenders"]] == [None, None]


def test_contenders_that_fit_together_are_timed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "read_device_bytes", lambda device: 2**40)
    assert run(tmp_path, monkeypatch)["spec"]["design"] == "alternating"


def scripted_load(monkeypatch: pytest.MonkeyPatch, cores: list[float]) -> None:
    monkeypatch.setattr(cpu, "count_foreign_cores", lambda before, after: cores.pop(0))
    monkeypatch.setattr("compare.execution.quiet.Patience.wait", lambda self: None)
    monkeypatch.setattr(round_validity, "find_limit", lambda plan: 0.25)


def test_a_void_round_counts_for_nobody_and_stays_in_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = {"fake": NOISE, "other": {"step_seconds": 0.008, **NOISE}}
    plans.register(monkeypatch, tmp_path, script)
    plan = plans.make(tmp_path / "out", ("fake", "other"), rounds=3)
    scripted_load(monkeypatch, [0.0, 0.8, 0.1, 0.0])
    result = _result(plan)
    assert (result["spec"]["rounds"], result["spec"]["rounds_requested"]) == (4, 3)
    assert result["voided"] == [{"round": 2, "reason": "other programs kept 0.80 cores busy"}]
    (comparison,) = result["comparisons"]
    assert (comparison["rounds"], comparison["verdict"]) == (3, "SLOWER")
    samples = [each["step_seconds"]["samples"] for each in result["contenders"]]
    assert [len(each) for each in samples] == [4, 4]
    kept = [[sorted(blocks)[2:4] for index, blocks in enumerate(each) if index != 1] for each in samples]
    logs = [math.log(sum(b) / sum(a)) for a, b in zip(*kept, strict=True)]
    assert comparison["ratio"]["estimate"] == pytest.approx(math.exp(sum(logs) / 3))
    assert result["telemetry"]["foreign_cores"] == [0.0, 0.8, 0.1, 0.0]
    assert recompute.find_mismatches(model.from_json(result)) == []


def test_with_too_few_rounds_left_nothing_is_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans.register(monkeypatch, tmp_path)
    plan = plans.make(tmp_path / "out", ("fake", "other"), rounds=3)
    scripted_load(monkeypatch, [0.9, 0.0, 0.9, 0.9, 0.0, 0.9])
    result = _result(plan)
    (comparison,) = result["comparisons"]
    assert (comparison["verdict"], comparison["rounds"]) == ("INCONCLUSIVE", 2)
    assert comparison["reason"] == "4 of 6 rounds are void"
    assert not verdicts.claim_failed(typed(result))
    assert result_file.load(result_file.write(typed(result), plan.out)) == result


def test_an_unknown_design_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="--design 'random' is not allowed; allowed: alternating, turns, sequential"):
        plans.make(tmp_path, ("torch", "jax"), design="random")


def test_contenders_that_compute_while_another_is_timed_void_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans.register(monkeypatch, tmp_path, {"fake": NOISE, "other": NOISE, "third": NOISE})
    plan = plans.make(tmp_path / "out", ("fake", "other", "third"), rounds=3)
    looked = list[int]()

    def sum_seconds(pids: list[int]) -> float:
        looked.append(len(pids))
        return 0.2 * len(pids) * time.monotonic()

    scripted_load(monkeypatch, [0.0] * 6)
    monkeypatch.setattr(cpu, "sum_seconds", sum_seconds)
    monkeypatch.setattr(timed_block, "MOST_LEAD_SECONDS", 0.0)
    result = _result(plan)
    assert set(looked) == {2}  # the processes of the two others
    cores = result["telemetry"]["idle_cores"]
    assert len(cores) == 6
    assert min(cores) > 0.39
    assert sorted(cores)[3] < 0.8  # single ones are larger where another program interrupts the look
    reasons = [each["reason"] for each in result["voided"]]
    assert len(reasons) == 6  # each is timed again
    assert all(reason.startswith("contenders that were not timed kept ") for reason in reasons)


def test_one_contender_s_blocks_tell_of_the_others_whatever_lasts_longer() -> None:
    short, long = Busy((1.0, 1.5), 0.4), Busy((2.0, 12.0), 0.1)
    assert timed_block.count_idle_cores([short, short]) == pytest.approx(0.8)
    assert timed_block.count_idle_cores([long, long]) == pytest.approx(0.01)
    assert timed_block.count_idle_cores([]) == 0


def test_blocks_lead_in_until_the_others_are_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_block, "MOST_LEAD_SECONDS", 5.0)
    spun = iter([0.0, 0.9, 1.0, 1.5, 1.5, 1.51, 1.51, 1.51])  # before and after each block, of one second
    monkeypatch.setattr(cpu, "sum_seconds", lambda pids: next(spun))
    found, calls = blocks_of()
    assert calls == 4  # three lead in
    assert found == Busy((3.0, 4.0), 0.0)


def test_blocks_do_not_lead_in_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_block, "MOST_LEAD_SECONDS", 5.0)
    busy = iter(range(100))
    monkeypatch.setattr(cpu, "sum_seconds", lambda pids: next(busy))
    found, calls = blocks_of()
    assert calls == 6
    assert found.idle == 1.0


def blocks_of() -> tuple[Busy, int]:
    """Time a block of one second after those that lead in. Return its window and the number of blocks."""
    trained = list[int]()
    launcher: Any = SimpleNamespace(now=lambda: float(len(trained)))
    (_, busy) = timed_block.time_after_lead(launcher, [2], lambda: trained.append(1), lambda: trained.append(1))
    return busy, len(trained)


def test_contenders_whose_memory_does_not_hold_the_end_of_a_round_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Process 3 is the first round's. It is fed when it opens and when it restarts.
    script = {"fake": NOISE, "other": {**NOISE, "fault": "oom", "at": "feed", "visit": 1, "process": 3}}
    result = run(tmp_path, monkeypatch, script=script)
    assert [each["status"] for each in result["contenders"]] == ["ok", "ok"]
    assert result["spec"]["design"] == "turns"
    assert result["spec"]["design_reason"].startswith("from round 1 on: the contenders do not fit in memory together")
    assert [len(each["step_seconds"]["samples"]) for each in result["contenders"]] == [2, 2]


def test_a_run_ends_as_soon_as_the_verdict_is_certain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans.register(monkeypatch, tmp_path, {"fake": NOISE, "other": {"step_seconds": 0.008, **NOISE}})
    result = _result(plans.make(tmp_path / "out", ("fake", "other"), rounds=None))
    (comparison,) = result["comparisons"]
    assert (comparison["verdict"], comparison["rounds"]) == ("SLOWER", 3)
    assert comparison["stopped"] == {"rounds": 3, "reason": "every verdict was certain"}
    assert comparison["ratio"]["confidence"] == pytest.approx(0.996)
    assert (result["spec"]["rounds"], result["spec"]["rounds_requested"]) == (3, 10)
    assert recompute.find_mismatches(model.from_json(result)) == []
    assert result_file.load(result_file.write(typed(result), tmp_path / "out")) == result


def test_a_run_goes_on_to_the_last_look_while_the_verdict_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans.register(monkeypatch, tmp_path, {"fake": NOISE, "other": NOISE})
    looks: list[float] = []

    def undecided(ratio: Any, margin: float) -> str:
        looks.append(ratio.confidence)
        return "INCONCLUSIVE"

    monkeypatch.setattr(rounds.statistics, "judge_ratio", undecided)
    result = _result(plans.make(tmp_path / "out", ("fake", "other"), rounds=None))
    assert result["spec"]["rounds"] == 10
    assert looks[:2] == pytest.approx([0.996, 0.989])
    assert result["comparisons"][0]["stopped"] == {"rounds": 10, "reason": "the maximum of 10 rounds was reached"}


def test_two_rounds_claim_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans.register(monkeypatch, tmp_path, {"fake": NOISE, "other": {"step_seconds": 0.008, **NOISE}})
    (comparison,) = _result(plans.make(tmp_path / "out", ("fake", "other"), rounds=2))["comparisons"]
    assert (comparison["verdict"], comparison["reason"]) == ("INCONCLUSIVE", "a verdict needs 3 rounds")
    assert comparison["ratio"] is not None


def test_a_void_round_is_timed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans.register(monkeypatch, tmp_path, {"fake": NOISE, "other": {"step_seconds": 0.008, **NOISE}})
    plan = plans.make(tmp_path / "out", ("fake", "other"), rounds=None)
    scripted_load(monkeypatch, [0.9, 0.0, 0.0, 0.9, 0.0])
    (comparison,) = _result(plan)["comparisons"]
    assert (comparison["verdict"], comparison["rounds"]) == ("SLOWER", 3)
