"""A plugin for suites under test (`pytest -p`): comparisons take no time and have made-up data and results.

The file MADE_UP_LOG gets a line for each comparison. MADE_UP_SLOWER multiplies the contender's times.
MADE_UP_NO_PEAKS leaves out the allocators' peaks, as on a CPU.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare.base.interface import Batch
from compare.data import datasets
from compare.execution import build_result, phases
from compare.execution.run_state import RunState
from compare.results import model
from compare.settings.plan import Plan
from tests.unit.result_factory import make_comparison, make_contender, make_result

ROUNDS = 2
BASELINE = 2.5e-3


def blocks(contender: int) -> list[list[float]]:
    """Return the seconds per step [rounds][blocks] of the first contender (0) or another."""
    # No sum of these is exact, so that a clock that ran on from block to block would show.
    slower = float(os.environ.get("MADE_UP_SLOWER", "1")) if contender else 1.0
    step = slower * BASELINE * (0.1 + 0.6 ** (contender + 1))
    return [[step * (1 + 0.01 * number + 0.1 * r) for number in range(6)] for r in range(ROUNDS)]


def result(state: RunState, *_: Any) -> model.Result:
    plan = state.plan
    names = [contender.name for contender in plan.contenders]
    contenders = [make_contender(name) for name in names]
    for number, contender in enumerate(contenders):
        samples = blocks(number)
        windows = [[[float(start), start + 0.1] for start, _ in enumerate(each)] for each in samples]
        contender["step_seconds"] |= {"samples": samples, "windows": windows}
        if "MADE_UP_NO_PEAKS" in os.environ:
            contender["memory"] |= {"live_peak_bytes": None, "pool_peak_bytes": None}
    made = make_result(
        contenders=contenders,
        comparisons=[make_comparison(name, baseline=names[0]) for name in names[1:]],
        spec={
            "workload": plan.workload.name,
            "contenders": names,
            "precision": plan.precision,
            "batch_size": plan.batch_size,
            "rounds": plan.rounds,
        },
    )
    return model.from_json(made | VARIANTS.get(plan.seed, dict)())


def _void() -> dict[str, Any]:
    undecided = make_comparison("other", "INCONCLUSIVE", baseline="fake", ratio=None, reason="2 of 2 rounds are void")
    void = [{"round": number + 1, "reason": "a busy machine"} for number in range(ROUNDS)]
    return {"voided": void, "comparisons": [undecided]}


# What a suite gets for a seed.
VARIANTS = {
    1: lambda: {"voided": [{"round": 1, "reason": "a busy machine"}]},
    2: _void,
    3: lambda: {"comparisons": [make_comparison("other", "INVALID", baseline="fake")]},
}


def _load(*_: Any, **__: Any) -> datasets.Dataset:
    batch = Batch(np.zeros((64, 8, 8, 1), np.float32), np.zeros(64, np.int32))
    return datasets.Dataset(batch, batch, "made up")


def _run(plan: Plan, *_: Any) -> RunState:
    if log := os.environ.get("MADE_UP_LOG"):
        with Path(log).open("a") as stream:
            stream.write(f"{[contender.name for contender in plan.contenders]} {plan.rounds} {plan.precision}\n")
    return RunState(plan, [])


def pytest_configure(config: pytest.Config) -> None:
    """Put what is made up in place for this suite alone: it may run inside another one's process."""
    patch = pytest.MonkeyPatch()
    patch.setattr(datasets, "load", _load)
    patch.setattr(phases, "run_comparison", _run)
    patch.setattr(build_result, "build", result)
    config.add_cleanup(patch.undo)
