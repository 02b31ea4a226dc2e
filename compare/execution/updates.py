"""Measure the change of every tensor at the timed batch, for the gate `update`. The certificate's own batch is small.

SGD takes these steps at a small learning rate. At its own rate, the first steps throw deep models far. After a dispatch
they are chaos: two runs of resnet50 one ulp apart had nothing in common. At a much smaller rate, float32 would no
longer hold the change of the weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from compare.agreement import gates
from compare.agreement.allowances import RUNNING_VARIANCE
from compare.agreement.gates import Gate
from compare.agreement.measures import Updates
from compare.base import descriptions, protocol, tensors
from compare.base.commands import Open, Update
from compare.base.interface import INFER, is_buffer
from compare.base.precisions import PRECISIONS
from compare.execution.jobs import Call, Job, Queue
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, RunState
from compare.user_models.match_report import Pairing

_RATE = 2.0**-16
"""The learning rate. Adam keeps its own rate if that is higher, because its steps do not grow with the gradient."""
_LEAST_STEPS = 3
_RUNS = 4
"""Runs from perturbed weights. In one run, a few of a deep model's small parameters stay close by chance."""
_LOSS_SCALE = 2.0**11
"""The first loss scale. At the default of 2**16, gradients of float16 may overflow in every step."""


def count_steps(launcher: Launcher, runs: Sequence[ContenderRun]) -> int:
    """Return the number of steps: as many as the longest dispatch of a contender, and at least three."""
    dispatches = (int(launcher.spec(run).knobs.get("steps-per-dispatch", 1)) for run in runs)
    return max(_LEAST_STEPS, *dispatches)


def make_missing_queues(launcher: Launcher, state: RunState, steps: int, queues: Sequence[Queue]) -> list[Queue]:
    """Return the steps of contenders that need a new certificate, and have neither taken them nor will in `queues`."""
    if not launcher.plan.agreement or launcher.plan.task == INFER:
        return []
    planned = {queue.run.contender.name for queue in queues}
    alive = [run for run in state.certified if run.status == "ok"]
    missing = [run for run in alive if run.update is None and run.contender.name not in planned]
    return [
        Queue(
            run, [Job("training", make_calls(launcher, run, steps), memory=run.held_bytes)], most=1, purpose="training"
        )
        for run in missing
    ]


def make_calls(launcher: Launcher, run: ContenderRun, steps: int) -> list[Call]:
    """Return the calls that take `steps` steps from the initial weights, and from weights that one ulp has moved."""
    plan = launcher.plan
    rule = plan.workload.optimizer
    # In the first steps of a schedule with a warm-up, the rate is already that much lower.
    rate = _RATE * max(1, rule.schedule.warmup) if rule.name == "sgd" else max(_RATE, rule.learning_rate)
    slower = replace(plan.workload, optimizer=replace(rule, learning_rate=rate))
    scale = {"loss_scale": _LOSS_SCALE} if PRECISIONS[plan.precision].has_loss_scale else {}
    spec = launcher.timed_spec(run, described=descriptions.to_json(slower), **scale)
    path = launcher.scratch / f"update-{run.contender.file_name}.safetensors"

    def keep(noise: Mapping[str, float | None]) -> None:
        run.update = Updates(tensors.load(path), protocol.restore_infinite(noise))

    return [Call(Open(spec)), Call(Update(steps, str(path), PRECISIONS[plan.precision].ulp, _RUNS), keep)]


def judge(state: RunState) -> None:
    """Add the gate `update` to the certificate of every contender with a measured update."""
    for run in state.alive:
        current = state.certificates.get(run.contender.name)
        if current is None or state.baseline.update is None or run.update is None:
            continue
        sides = [_drop_allowed(side, state.pairing) for side in (state.baseline.update, run.update)]
        gate, judged, count = gates.judge_update(*sides), gates.select_judged(*sides), len(sides[0].changes)
        state.certificates[run.contender.name] = current.extended(
            [gate],
            mismatch=None if gate.passed else f"the update at the batch that is timed {_describe_fault(gate, sides)}",
            notes=[f"update: asked of {len(judged)} of {count} tensors"] if 0 < len(judged) < count else [],
        )


def _drop_allowed(side: Updates, pairing: Pairing | None) -> Updates:
    """Return a side without running variances, if they may be unbiased on one side only."""
    if pairing is None or RUNNING_VARIANCE not in pairing.allowed:
        return side
    names = [name for name in side.changes if not (is_buffer(name) and name.endswith("var"))]
    return Updates({name: side.changes[name] for name in names}, {name: side.noise[name] for name in names})


def _describe_fault(gate: Gate, sides: Sequence[Updates]) -> str:
    if gate.worst_tensor is not None:
        return f"is another: {gate.worst_tensor}"
    for name, side in zip(("baseline", "contender"), sides, strict=True):
        changes = [change for tensor, change in side.changes.items() if not is_buffer(tensor)]
        if not any(change.any() for change in changes):
            return f"is none: the {name}'s steps change no parameter"
        if not any(np.isfinite(change).all() for change in changes):
            return f"is not finite in any of the {name}'s parameters"
    return "is nothing but rounding in every parameter"
