"""Whole training runs for gate 4: each contender's losses, its perturbed twins', and accuracies over seeds."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from compare import data
from compare.agreement import referee, trajectory
from compare.agreement.trajectory import Curves
from compare.data import store
from compare.launcher import Launcher, Outcome, Outcomes
from compare.recorders import Command, Recorder

TWINS = 5


class Training:
    """The training runs of every contender that is alive, for the trajectory and accuracy gates.

    A failure in `recorders`, which do the training, leaves the contender what it has of a certificate, as incomplete.
    """

    def __init__(self, launcher: Launcher, outcomes: Outcomes, seeds: int) -> None:
        self._outcomes, self._seeds = outcomes, seeds
        _save_seeded(launcher, seeds)
        self._losses: dict[str, list[list[float | None]]] = {each.contender.name: [] for each in outcomes.alive}
        self._accuracies: dict[str, list[float]] = {name: [] for name in self._losses}
        self.recorders = [
            Recorder(
                outcome,
                list(_commands(launcher, outcome, seeds, self._losses[name], self._accuracies[name])),
                "trajectory",
                fresh=True,
                spares=True,
            )
            for name, outcome in zip(self._losses, outcomes.alive, strict=True)
        ]

    def conclude(self) -> None:
        """Add the trajectory and accuracy gates to every certificate."""
        for recorder in self.recorders:
            recorder.settle()
        outcomes, accuracies = self._outcomes, self._accuracies
        curves = {name: _curves(runs) for name, runs in self._losses.items() if len(runs) == TWINS + 1}
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
        outcomes.curves = curves
        outcomes.accuracies = {name: found for name, found in accuracies.items() if len(found) == self._seeds}


def _save_seeded(launcher: Launcher, seeds: int) -> None:
    plan = launcher.plan
    for seed in range(plan.seed + 1, plan.seed + seeds):
        made = data.load(
            plan.workload, folder=plan.data_folder, seed=seed, batch_size=plan.batch_size, epochs=plan.epochs
        )
        store.save(made, launcher.seeded(seed))


def _commands(
    launcher: Launcher, outcome: Outcome, seeds: int, losses: list[list[float | None]], accuracies: list[float]
) -> Iterator[Command]:
    """Yield what a child is asked: the losses of its own run and of its perturbed twins, then an accuracy a seed."""
    plan = launcher.plan
    yield Command("open", {"spec": launcher.spec(outcome)}, "open", partial(setattr, outcome, "opened"))
    ulp = 2 * referee.ROUNDOFF.get(plan.precision, 2.0**-53)
    for twin in range(TWINS + 1):
        yield Command("losses", {"roundoff": ulp, "generation": twin}, "train", losses.append)
    yield Command("settings", {}, "open", partial(setattr, outcome, "settings"))

    def trained(found: dict[str, Any]) -> None:
        outcome.training = outcome.training or found
        accuracies.append(found["test_accuracy"])

    for seed in range(plan.seed, plan.seed + seeds):
        changes: dict[str, Any] = {} if seed == plan.seed else {"seed": seed, "data": str(launcher.seeded(seed))}
        yield Command("open", {"spec": launcher.spec(outcome, **changes)}, "open", lambda _: None)
        yield Command("train", {}, "train", trained)


def _curves(runs: list[list[float | None]]) -> Curves:
    losses = np.array(runs, np.float64)  # None, a loss that was not finite, becomes NaN
    return Curves.of(losses[0], losses[1:])
