"""Run whole training runs for the gates of trajectory and accuracy: a contender's own, its twins' and other seeds'."""

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
from compare.base.commands import Losses, ModelInfo, Open, Settings, Train, TrainingResult
from compare.base.precisions import PRECISIONS
from compare.data import dataset_file, datasets
from compare.execution.jobs import Call, Job, Queue, has_spare_cores
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, RunState
from compare.settings.plan import Plan

TWINS = 5
# The largest batch, in image values, with which a GPU holds several training runs at once: 682 CIFAR images.
_MOST_VALUES = 2**21


@dataclass
class TrainingRuns:
    """The results of each contender's training runs.

    Attributes:
        seeds: the seeds of the runs.
        losses: by contender and twin; twin 0 is the contender's own run.
        accuracies: the test accuracies by contender and seed.
        twins: the test accuracies of one twin for each seed, for contenders whose accuracies are not equivalent.
        first_twins: the test accuracy of this twin for the first seed, by contender.
    """

    seeds: Sequence[int]
    losses: dict[str, dict[int, list[float | None]]]
    accuracies: dict[str, dict[int, float]]
    twins: dict[str, dict[int, float]] = field(default_factory=dict[str, dict[int, float]])
    first_twins: dict[str, float] = field(default_factory=dict[str, float])

    @classmethod
    def begin(cls, launcher: Launcher, state: RunState, seeds: int) -> "TrainingRuns":
        """Write the datasets of all seeds and return the runs without results."""
        plan, names = launcher.plan, [run.contender.name for run in state.alive]
        for seed in range(plan.seed + 1, plan.seed + seeds):
            dataset = datasets.load(
                plan.workload,
                folder=plan.data,
                seed=seed,
                batch_size=plan.batch_size,
                epochs=plan.epochs,
                images=plan.images,
            )
            dataset_file.save(dataset, launcher.dataset_of_seed(seed))
        return cls(range(plan.seed, plan.seed + seeds), {name: {} for name in names}, {name: {} for name in names})

    def is_complete(self, name: str) -> bool:
        """Tell whether all runs of a contender have ended."""
        return len(self.losses[name]) == TWINS + 1 and len(self.accuracies[name]) == len(self.seeds)

    def list_accuracies(self, accuracies: dict[str, dict[int, float]]) -> dict[str, list[float]]:
        """Return the accuracies in the order of seeds, for contenders that have one for every seed.

        NaN stands for a model without classes, which has no accuracy.
        """
        complete = {name: by_seed for name, by_seed in accuracies.items() if len(by_seed) == len(self.seeds)}
        listed = {name: [by_seed[seed] for seed in self.seeds] for name, by_seed in complete.items()}
        return {name: values for name, values in listed.items() if not any(map(math.isnan, values))}

    def curves(self, name: str) -> Curves:
        """Return the losses of a contender and of its twins."""
        losses = np.array([self.losses[name][twin] for twin in range(TWINS + 1)], np.float64)  # None becomes NaN
        return Curves.of(losses[0], losses[1:])


def make_training_jobs(launcher: Launcher, state: RunState, runs: TrainingRuns) -> dict[str, list[Job]]:
    """Return the training runs by contender.

    They are one job for each run if children can share them and memory holds them, and else one job for all.
    """
    values = launcher.plan.batch_size * math.prod(launcher.plan.workload.model.image)
    is_parted = has_spare_cores(launcher, state) and values <= _MOST_VALUES
    return {run.contender.name: _make_jobs(launcher, run, runs, is_parted) for run in state.alive}


def make_twin_queues(launcher: Launcher, state: RunState, runs: TrainingRuns) -> list[Queue]:
    """Return a twin's training run for each seed, for both sides of every pair with unequal accuracies."""
    accuracies, baseline = runs.list_accuracies(runs.accuracies), state.baseline.contender.name
    own = accuracies.get(baseline)
    unlike = {name for name, other in accuracies.items() if own and not trajectory.judge_accuracies(own, other).passed}
    queues = list[Queue]()
    for run in state.alive:
        if unlike and run.contender.name in {baseline, *unlike}:
            first, *others = runs.seeds  # the first one is trained already
            twins = runs.twins[run.contender.name] = {first: runs.first_twins[run.contender.name]}
            calls = list[Call]()
            for seed in others:
                calls += _train_calls(launcher, run, seed, partial(_keep_accuracy, twins, seed), 1)
            queues.append(Queue(run, [Job("trajectory", calls, spares=True)] if calls else []))
    return queues


def _make_jobs(launcher: Launcher, run: ContenderRun, runs: TrainingRuns, is_parted: bool) -> list[Job]:
    plan, name = launcher.plan, run.contender.name

    def losses(twin: int) -> Call:
        return Call(Losses(_ulp(plan), twin), partial(setitem, runs.losses[name], twin))

    def keep_first_twin(training: TrainingResult) -> None:
        runs.losses[name][1] = list(training.step_losses)
        runs.first_twins[name] = _read_accuracy(training)

    def keep_own(training: TrainingResult) -> None:
        run.training = training
        runs.losses[name][0] = list(training.step_losses)
        _keep_accuracy(runs.accuracies[name], plan.seed, training)

    def keep_settings(settings: dict[str, Any]) -> None:
        run.settings = settings

    start = _open_call(launcher, run, plan.seed)
    own = [start, Call(Train(), keep_own), Call(Settings(), keep_settings)]
    first_twin = Call(Train(_ulp(plan), 1, only_test=True), keep_first_twin)
    of_twins = [[start, first_twin], *([start, losses(twin)] for twin in range(2, TWINS + 1))]
    others = [seed for seed in runs.seeds if seed != plan.seed]
    of_seeds = [
        _train_calls(launcher, run, seed, partial(_keep_accuracy, runs.accuracies[name], seed), 0) for seed in others
    ]
    parts = [own, *of_twins, *of_seeds]
    if not is_parted:  # one after the other in the open session
        parts = [[*own, *(call for _, call in of_twins), *itertools.chain(*of_seeds)]]
    return [Job("trajectory", calls, spares=True) for calls in parts]


def _open_call(launcher: Launcher, run: ContenderRun, seed: int) -> Call:
    def keep(model: ModelInfo) -> None:
        run.model = model

    if seed == launcher.plan.seed:
        return Call(Open(launcher.spec(run)), keep)
    return Call(Open(launcher.spec(run, seed=seed, data=str(launcher.dataset_of_seed(seed)))))


def _train_calls(
    launcher: Launcher, run: ContenderRun, seed: int, keep: Callable[[TrainingResult], None], twin: int
) -> list[Call]:
    train = Train(_ulp(launcher.plan) if twin else 0.0, twin, only_test=True)
    return [_open_call(launcher, run, seed), Call(train, keep)]


def _ulp(plan: Plan) -> float:
    """Return the relative distance by which a twin's weights are moved."""
    return PRECISIONS[plan.precision].ulp


def _keep_accuracy(accuracies: dict[int, float], seed: int, training: TrainingResult) -> None:
    accuracies[seed] = _read_accuracy(training)


def _read_accuracy(training: TrainingResult) -> float:
    return math.nan if training.test_accuracy is None else training.test_accuracy


def judge(state: RunState, runs: TrainingRuns) -> None:
    """Add the gates of trajectory and accuracy to every contender's certificate."""
    curves = {name: runs.curves(name) for name in runs.losses if runs.is_complete(name)}
    accuracies, of_twins = runs.list_accuracies(runs.accuracies), runs.list_accuracies(runs.twins)
    a = state.baseline.contender.name
    for b, current in state.certificates.items():
        if a in curves and b in curves:
            judged = [trajectory.judge_losses(curves[a], curves[b])]
            if a in accuracies and b in accuracies:
                beside = [(accuracies[name], of_twins[name]) for name in (a, b) if name in of_twins]
                judged.append(trajectory.judge_accuracies(accuracies[a], accuracies[b], beside))
            state.certificates[b] = current.extended(tuple(judged))
        else:
            state.certificates[b] = replace(current, complete=False)
    state.curves, state.accuracies, state.twin_accuracies = curves, accuracies, of_twins
