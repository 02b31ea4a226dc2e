"""Telemetry that is thinned for the result's size: nothing that is computed from it changes."""

import random
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compare.base import untrusted
from compare.execution import build_result, execute, phases, round_validity, run_times
from compare.execution.round_validity import Round
from compare.execution.run_state import RunState
from compare.execution.telemetry import Telemetry
from compare.report import telemetry_text
from compare.reproduce import recompute
from compare.results import model, result_file
from compare.results.thinning import thin
from tests.unit.mutations import on_a_gpu
from tests.unit.result_factory import make_contender, make_result, make_watched, typed


def _drawn(chance: random.Random) -> dict[str, Any]:
    """Return a result. Its windows and two GPUs' samples, full of faults, are of interest."""
    starts = sorted(chance.uniform(0, 60) for _ in range(6))
    blocks = [[[start, start + chance.choice((0.01, 0.4, 3))]] for start in starts]
    step = make_contender()["step_seconds"] | {"windows": blocks}
    windowed = [make_contender(step_seconds=step), make_contender("jax", step_seconds=None)]
    gpus = [{"lists_processes": True, "samples": _faulty(chance)} for _ in range(2)]
    result = make_result(contenders=windowed)
    result["telemetry"] |= {**gpus[0], "reason": None, "cost_cores": 0.01, "others": gpus[1:]}
    return result


def _faulty(chance: random.Random) -> dict[str, list[Any]]:
    seconds = sorted(chance.uniform(0, 70) for _ in range(chance.choice((0, 1, 40, 300))))
    return {
        "seconds": seconds,
        "clock_reasons": [chance.choice((0, 0, 0, 0x40)) for _ in seconds],
        "foreign": [[4711] if chance.random() < 0.1 else [] for _ in seconds],
        "own": [int(chance.random() < 0.01) for _ in seconds],
        "uncorrected_errors": [index // 9 for index in range(len(seconds))],
        "xids": [[79] if chance.random() < 0.1 else [] for _ in seconds],
    }


def _voids(result: dict[str, Any]) -> Any:
    windows = result["contenders"][0]["step_seconds"]["windows"]
    rounds = [Round([(start, end) for start, end in blocks]) for blocks in windows]
    return round_validity.find_void_rounds(rounds, Telemetry.of_json(result["telemetry"]), "cuda")


def test_the_same_rounds_are_void_for_the_same_reasons() -> None:
    chance, left_out = random.Random(0), 0
    for _ in range(200):
        result = _drawn(chance)
        before = deepcopy(result)
        less = model.to_json(thin(typed(result)))
        assert result == before
        assert _voids(less) == _voids(result)
        each, rest = (Telemetry.of_json(found["telemetry"]).each for found in (result, less))
        assert [gpu.listed for gpu in rest] == [gpu.listed for gpu in each]
        gone = sum(len(gpu.samples) for gpu in each) - sum(len(gpu.samples) for gpu in rest)
        assert less["telemetry"].get("left_out", 0) == gone
        left_out += gone
    assert left_out


def mismatches(result: dict[str, Any]) -> list[recompute.Mismatch]:
    return recompute.find_mismatches(model.from_json(result))


def test_what_is_left_of_a_result_is_a_result_that_comes_again() -> None:
    result = on_a_gpu()
    less = model.to_json(thin(typed(result)))
    result_file.validate(less)
    assert mismatches(less) == mismatches(result) == []


def test_a_result_of_many_hours_is_kept_and_says_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made, ticks = make_watched(), 10_000
    samples = made["telemetry"]["samples"]
    series = {name: values[:1] * ticks for name, values in samples.items()}
    seconds = [tick / 10 for tick in range(ticks)]
    made["telemetry"]["samples"] = {**series, "seconds": seconds, "memory_clock_mhz": [3201] * ticks}
    monkeypatch.setattr(untrusted, "ITEM_LIMIT", ticks)
    plan: Any = SimpleNamespace(out=tmp_path / "out", device="cuda", void_limit=0.25)
    monkeypatch.setattr(phases, "run_comparison", lambda *_: RunState(plan, []))
    monkeypatch.setattr(build_result, "build", lambda *_: typed(made))
    monkeypatch.setattr(run_times, "keep", lambda *_: None)
    thinned, path = execute.execute(plan, [])
    result = model.to_json(thinned)
    assert result_file.load(path) == result
    left = len(result["telemetry"]["samples"]["seconds"])
    assert 60 <= left < 130
    said = f"{ticks - left:,} samples of telemetry between blocks are left out, for the file's size"
    assert said in capfd.readouterr().err
    before, after = ([*telemetry_text.list_lines(typed(each))] for each in (made, result))
    assert after[:-1] == before
    assert after[-1].startswith(f"{ticks - left:,} samples between blocks are left out")
