"""What steps change at the batch that is timed, for the gate `update`: the certificate's own batch is a small one.

SGD takes them at a small learning rate, whatever its own. At a whole one deep models, thrown far by their first steps,
are chaos after a dispatch: two runs of resnet50 an ulp apart had nothing in common. At a much smaller one, float32
would no longer hold what is added to the weights.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from compare.agreement import gates
from compare.agreement.allowances import RUNNING_VARIANCE
from compare.agreement.gates import Gate
from compare.agreement.measures import Updates
from compare.base import descriptions, protocol, tensors
from compare.base.interface import is_buffer
from compare.base.precisions import PRECISIONS
from compare.execution.jobs import Command, open_command
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, RunState
from compare.user_models.match_report import Pairing

_RATE = 2.0**-16
"""Adam's steps do not grow with the gradient: it has its own rate, if that is more."""
_LEAST_STEPS = 3
_RUNS = 4
"""Runs from moved weights: of one alone, a few of a deep model's small parameters are near by chance."""
_LOSS_SCALE = 2.0**11
"""The first loss scale. At the default of 2**16, gradients of float16 may overflow in every step."""


def steps(launcher: Launcher, runs: Sequence[ContenderRun]) -> int:
    """Return the steps that are taken: as many as every contender dispatches at once, and a few at least."""
    dispatches = (launcher.spec(run)["knobs"].get("steps-per-dispatch", 1) for run in runs)
    return max(_LEAST_STEPS, *dispatches)


def commands(launcher: Launcher, run: ContenderRun, count: int) -> list[Command]:
    """Return what has a child take `count` steps, from the initial weights and from such that one ulp has moved."""
    plan = launcher.plan
    rule = plan.workload.optimizer
    # The first steps of a schedule that warms up are as much slower already.
    rate = _RATE * max(1, rule.schedule.warmup) if rule.name == "sgd" else max(_RATE, rule.learning_rate)
    slower = replace(plan.workload, optimizer=replace(rule, learning_rate=rate))
    scale = {"loss_scale": _LOSS_SCALE} if PRECISIONS[plan.precision].has_loss_scale else {}
    spec = launcher.spec(run, described=descriptions.to_json(slower), **scale)
    path = launcher.scratch / f"update-{run.contender.name}.safetensors"
    arguments = {"steps": count, "path": str(path), "roundoff": PRECISIONS[plan.precision].ulp, "runs": _RUNS}

    def keep(noise: dict[str, float | None]) -> None:
        run.update = Updates(tensors.load(path), protocol.or_infinite(noise))

    return [open_command(spec), Command("update", arguments, "train", keep)]


def judge(state: RunState) -> None:
    """Add the gate to the certificate of every contender that got there."""
    baseline = state.runs[0]
    for run in state.alive:
        made = state.certificates.get(run.contender.name)
        if made is None or baseline.update is None or run.update is None:
            continue
        sides = [_compared(side, state.pairing) for side in (baseline.update, run.update)]
        gate, asked, count = gates.judge_update(*sides), gates.select_judged(*sides), len(sides[0].changes)
        state.certificates[run.contender.name] = made.extended(
            [gate],
            mismatch=None if gate.passed else f"the update at the batch that is timed {_wrong(gate, sides)}",
            notes=[f"update: asked of {len(asked)} of {count} tensors"] if 0 < len(asked) < count else [],
        )


def _compared(side: Updates, pairing: Pairing | None) -> Updates:
    """Return what is compared of a side: all but running variances, where they may be unbiased on one side alone."""
    if pairing is None or RUNNING_VARIANCE not in pairing.allowed:
        return side
    names = [name for name in side.changes if not (is_buffer(name) and name.endswith("var"))]
    return Updates({name: side.changes[name] for name in names}, {name: side.noise[name] for name in names})


def _wrong(gate: Gate, sides: Sequence[Updates]) -> str:
    if gate.worst_tensor is not None:
        return f"is another: {gate.worst_tensor}"
    for side, found in zip(("baseline", "contender"), sides, strict=True):
        changes = [change for name, change in found.changes.items() if not is_buffer(name)]
        if not any(change.any() for change in changes):
            return f"is none: the {side}'s steps change no parameter"
        if not any(np.isfinite(change).all() for change in changes):
            return f"is not finite in any of the {side}'s parameters"
    return "is nothing but rounding in every parameter"
