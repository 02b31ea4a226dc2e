"""Whole training runs for gate 4: each contender's losses, its perturbed twins', and accuracies over seeds."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import setitem
from typing import Any

import numpy as np

from compare.agreement import trajectory
from compare.agreement.trajectory import Curves
from compare.base.precisions import PRECISIONS
from compare.data import dataset_file, datasets
from compare.execution.jobs import (
    Command,
    Job,
    Queue,
    may_be_shared,
    open_command,
)
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, RunState
from compare.settings.plan import Plan

TWINS = 5
# Values of a batch of images with which a GPU has memory for several training runs at once: 682 CIFAR images.
_MOST_VALUES = 2**21


@dataclass
class Runs:
    """What the training runs of each contender found: losses by twin, 0 its own run, and test accuracy by seed.

    `twins` are the accuracies of one one-ulp twin a seed, for the contenders of which they were asked.
    """

    seeds: Sequence[int]
    losses: dict[str, dict[int, list[float | None]]]
    accuracies: dict[str, dict[int, float]]
    twins: dict[str, dict[int, float]] = field(default_factory=dict[str, dict[int, float]])

    @classmethod
    def of(cls, launcher: Launcher, state: RunState, seeds: int) -> "Runs":
        """Return what is still empty, the datasets of all seeds written."""
        plan, names = launcher.plan, [run.contender.name for run in state.alive]
        for seed in range(plan.seed + 1, plan.seed + seeds):
            made = datasets.load(
                plan.workload,
                folder=plan.data,
                seed=seed,
                batch_size=plan.batch_size,
                epochs=plan.epochs,
                images=plan.images,
            )
            dataset_file.save(made, launcher.dataset_of_seed(seed))
        return cls(range(plan.seed, plan.seed + seeds), {name: {} for name in names}, {name: {} for name in names})

    def is_whole(self, name: str) -> bool:
        """Whether all runs of a contender have ended."""
        return len(self.losses[name]) == TWINS + 1 and len(self.accuracies[name]) == len(self.seeds)

    def over_seeds(self, accuracies: dict[str, dict[int, float]]) -> dict[str, list[float]]:
        """Return the accuracies of contenders that have one of every seed, in the order of seeds."""
        every = {name: found for name, found in accuracies.items() if len(found) == len(self.seeds)}
        return {name: [found[seed] for seed in self.seeds] for name, found in every.items()}

    def curves(self, name: str) -> Curves:
        """Return a contender's losses beside its perturbed twins'."""
        losses = np.array([self.losses[name][twin] for twin in range(TWINS + 1)], np.float64)  # None becomes NaN
        return Curves.of(losses[0], losses[1:])


def jobs(launcher: Launcher, state: RunState, runs: Runs) -> dict[str, list[Job]]:
    """Return the training runs by contender: one job, or one each where children share them and memory holds them."""
    values = launcher.plan.batch_size * math.prod(launcher.plan.workload.model.image)
    apart = may_be_shared(launcher, state) and values <= _MOST_VALUES
    return {run.contender.name: _jobs(launcher, run, runs, apart) for run in state.alive}


def twins(launcher: Launcher, state: RunState, runs: Runs) -> list[Queue]:
    """Return one more training run a seed, from one ulp beside, of both sides whose accuracies are not equivalent."""
    found, baseline = runs.over_seeds(runs.accuracies), state.runs[0].contender.name
    own = found.get(baseline)
    unlike = {name for name, each in found.items() if own and not trajectory.judge_accuracies(own, each).passed}
    moved, queues = _moved(launcher.plan, 1), list[Queue]()
    for run in state.alive:
        if unlike and run.contender.name in {baseline, *unlike}:
            kept = runs.twins[run.contender.name] = {}
            commands = list[Command]()
            for seed in runs.seeds:
                commands += _trained(launcher, run, seed, partial(_keep_accuracy, kept, seed), moved)
            queues.append(Queue(run, [Job("trajectory", commands, spares=True)]))
    return queues


def _jobs(launcher: Launcher, run: ContenderRun, runs: Runs, apart: bool) -> list[Job]:
    plan, name = launcher.plan, run.contender.name

    def losses(twin: int) -> Command:
        return Command("losses", _moved(plan, twin), "train", partial(setitem, runs.losses[name], twin))

    def keep(seed: int, found: dict[str, Any]) -> None:
        if seed == plan.seed:
            run.training = found
        _keep_accuracy(runs.accuracies[name], seed, found)

    opened = _opened(launcher, run, plan.seed)
    own = [opened, losses(0), Command("settings", {}, "open", partial(setattr, run, "settings"))]
    of_twins = [[opened, losses(twin)] for twin in range(1, TWINS + 1)]
    of_seeds = [_trained(launcher, run, seed, partial(keep, seed), {}) for seed in runs.seeds]
    parts = [own, *of_twins, *of_seeds]
    if not apart:  # one after the other, in the session that is open
        parts = [[*own, *(command for _, command in of_twins), *itertools.chain(*of_seeds)]]
    return [Job("trajectory", commands, spares=True) for commands in parts]


def _opened(launcher: Launcher, run: ContenderRun, seed: int) -> Command:
    if seed == launcher.plan.seed:
        return open_command(launcher.spec(run), partial(setattr, run, "opened"))
    return open_command(launcher.spec(run, seed=seed, data=str(launcher.dataset_of_seed(seed))))


def _trained(
    launcher: Launcher, run: ContenderRun, seed: int, keep: Callable[[Any], None], moved: dict[str, Any]
) -> list[Command]:
    return [_opened(launcher, run, seed), Command("train", moved, "train", keep)]


def _moved(plan: Plan, twin: int) -> dict[str, Any]:
    """Return the arguments of a twin, whose weights one ulp of the precision has moved; twin 0 is the run itself."""
    return {"roundoff": PRECISIONS[plan.precision].ulp, "generation": twin}


def _keep_accuracy(kept: dict[int, float], seed: int, found: dict[str, Any]) -> None:
    kept[seed] = found["test_accuracy"]


def judge(state: RunState, runs: Runs) -> None:
    """Add the trajectory and accuracy gates to every contender's certificate."""
    curves = {name: runs.curves(name) for name in runs.losses if runs.is_whole(name)}
    accuracies, of_twins = runs.over_seeds(runs.accuracies), runs.over_seeds(runs.twins)
    a = state.runs[0].contender.name
    for b, made in state.certificates.items():
        if a in curves and b in curves:
            beside = [(accuracies[name], of_twins[name]) for name in (a, b) if name in of_twins]
            accuracy = trajectory.judge_accuracies(accuracies[a], accuracies[b], beside)
            state.certificates[b] = made.extended((trajectory.judge_losses(curves[a], curves[b]), accuracy))
        else:
            state.certificates[b] = replace(made, complete=False)
    state.curves, state.accuracies, state.twin_accuracies = curves, accuracies, of_twins
