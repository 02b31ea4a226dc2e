"""Whole training runs for gate 4: each contender's losses, its perturbed twins', and accuracies over seeds."""

from dataclasses import replace
from typing import Any

import numpy as np

from compare import data
from compare.agreement import referee, trajectory
from compare.agreement.trajectory import Curves
from compare.child import Child
from compare.data import store
from compare.launcher import Launcher, Outcome, Outcomes

TWINS = 5


def run(launcher: Launcher, outcomes: Outcomes, seeds: int) -> None:
    """Train every contender that is alive, and add the trajectory and accuracy gates to its certificate."""
    plan = launcher.plan
    for seed in range(plan.seed + 1, plan.seed + seeds):
        made = data.load(
            plan.workload, folder=plan.data_folder, seed=seed, batch_size=plan.batch_size, epochs=plan.epochs
        )
        store.save(made, launcher.seeded(seed))
    curves: dict[str, Curves] = {}
    accuracies: dict[str, list[float]] = {}
    for outcome in outcomes.alive:
        with launcher.child(outcome, purpose="trajectory") as child:
            curves[outcome.contender.name] = _curves(launcher, child, outcome)
            accuracies[outcome.contender.name] = _accuracies(launcher, child, outcome, seeds)
    baseline = outcomes.contenders[0]
    for outcome in outcomes.contenders[1:]:
        a, b = baseline.contender.name, outcome.contender.name
        if b not in outcomes.certificates:
            continue
        if baseline.status != "ok" or outcome.status != "ok":
            outcomes.certificates[b] = replace(outcomes.certificates[b], complete=False)
        else:
            outcomes.certificates[b] = outcomes.certificates[b].extended(
                (trajectory.gate(curves[a], curves[b]), trajectory.accuracy_gate(accuracies[a], accuracies[b]))
            )
    outcomes.curves, outcomes.accuracies = curves, accuracies


def _curves(launcher: Launcher, child: Child, outcome: Outcome) -> Curves:
    deadlines = launcher.plan.deadlines
    outcome.opened = child.call("open", deadlines["open"], spec=launcher.spec(outcome))
    ulp = 2 * referee.ROUNDOFF.get(launcher.plan.precision, 2.0**-53)
    runs = [child.call("losses", deadlines["train"], roundoff=ulp, generation=twin) for twin in range(TWINS + 1)]
    outcome.settings = child.call("settings", deadlines["open"])
    losses = np.array(runs, np.float64)  # None, a loss that was not finite, becomes NaN
    return Curves.of(losses[0], losses[1:])


def _accuracies(launcher: Launcher, child: Child, outcome: Outcome, seeds: int) -> list[float]:
    plan, found = launcher.plan, list[float]()
    for seed in range(plan.seed, plan.seed + seeds):
        changes: dict[str, Any] = {} if seed == plan.seed else {"seed": seed, "data": str(launcher.seeded(seed))}
        child.call("open", plan.deadlines["open"], spec=launcher.spec(outcome, **changes))
        trained = child.call("train", plan.deadlines["train"])
        outcome.training = outcome.training or trained
        found.append(trained["test_accuracy"])
    return found
