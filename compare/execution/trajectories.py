"""Run whole training runs for the gates of trajectory and accuracy: a contender's own, its twins' and other seeds'."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import setitem
from typing import Any

import numpy as np

from compare.agreement import trajectory
from compare.agreement.gates import Gate
from compare.agreement.trajectory import Curves
from compare.base.commands import Losses, ModelInfo, Open, Settings, Train, TrainingResult
from compare.base.precisions import PRECISIONS
from compare.data import dataset_file, datasets
from compare.execution.jobs import Call, Job, has_spare_cores
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, RunState
from compare.settings.plan import Plan

TWINS = 5
"""The most twins of a contender's own run. More twins only widen the envelope, so a few come first."""
_FIRST_TWINS = 2
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
        unlike: the contenders that need all twins of their own run.
        first_twins: the test accuracy of this twin for the first seed, by contender.
    """

    seeds: Sequence[int]
    losses: dict[str, dict[int, list[float | None]]]
    accuracies: dict[str, dict[int, float]]
    twins: dict[str, dict[int, float]] = field(default_factory=dict[str, dict[int, float]])
    first_twins: dict[str, float] = field(default_factory=dict[str, float])
    unlike: set[str] = field(default_factory=set[str])
    _seen: int = 0

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

    def has_more(self) -> bool:
        """Tell whether there are more results than at the last call."""
        before, results = self._seen, (*self.losses.values(), *self.accuracies.values(), *self.twins.values())
        self._seen = sum(map(len, results))
        return self._seen > before

    def is_complete(self, name: str) -> bool:
        """Tell whether all runs of a contender have ended."""
        twins = TWINS if name in self.unlike else _FIRST_TWINS
        return len(self.losses[name]) > twins and len(self.accuracies[name]) == len(self.seeds)

    def list_accuracies(self, accuracies: dict[str, dict[int, float]]) -> dict[str, list[float]]:
        """Return the accuracies in the order of seeds, for contenders that have one for every seed.

        NaN stands for a model without classes, which has no accuracy.
        """
        complete = {name: by_seed for name, by_seed in accuracies.items() if len(by_seed) == len(self.seeds)}
        listed = {name: [by_seed[seed] for seed in self.seeds] for name, by_seed in complete.items()}
        return {name: values for name, values in listed.items() if not any(map(math.isnan, values))}

    def judge_losses(self, baseline: str, contender: str) -> Gate | None:
        """Return the gate of two sides' losses, or None if runs are missing."""
        if not (self.is_complete(baseline) and self.is_complete(contender)):
            return None
        return trajectory.judge_losses(self.curves(baseline), self.curves(contender))

    def judge_accuracies(self, baseline: str, contender: str) -> Gate | None:
        """Return the gate of two sides' accuracies, or None if they have none for every seed."""
        accuracies, twins = self.list_accuracies(self.accuracies), self.list_accuracies(self.twins)
        if baseline not in accuracies or contender not in accuracies:
            return None
        beside = [(accuracies[name], twins[name]) for name in (baseline, contender) if name in twins]
        return trajectory.judge_accuracies(accuracies[baseline], accuracies[contender], beside)

    def curves(self, name: str) -> Curves:
        """Return the losses of a contender and of its twins."""
        runs = self.losses[name]
        losses = np.array([runs[twin] for twin in sorted(runs)], np.float64)  # None becomes NaN
        return Curves.of(losses[0], losses[1:])


def make_training_jobs(launcher: Launcher, state: RunState, runs: TrainingRuns) -> dict[str, list[Job]]:
    """Return the training runs by contender.

    They are one job for each run if children can share them and memory holds them, and else one job for all.
    """
    is_parted = has_spare_cores(launcher, state) and _may_share_memory(launcher)
    return {run.contender.name: _make_jobs(launcher, run, runs, is_parted) for run in state.alive}


def _may_share_memory(launcher: Launcher) -> bool:
    """Tell whether memory holds several training runs."""
    return launcher.plan.batch_size * math.prod(launcher.plan.workload.model.image) <= _MOST_VALUES


def make_twin_jobs(launcher: Launcher, state: RunState, runs: TrainingRuns) -> dict[str, list[Job]]:
    """Return by contender the twins' training runs that turn out to be needed since the last call.

    If the losses of a pair are too far apart for the twins so far, both sides need all twins. If its accuracies are
    unequal, a twin for each seed shows how far rounding moves them: first of the baseline, then of the other side.
    """
    jobs = defaultdict[str, list[Job]](list)
    if not runs.has_more():
        return jobs
    alive, baseline = {run.contender.name: run for run in state.alive}, state.baseline.contender.name
    others = [name for name in alive if name != baseline] if baseline in alive else []
    apart = [name for name in others if not _passes(runs.judge_losses(baseline, name))]
    for name in [each for each in (baseline, *apart) if apart and each not in runs.unlike]:
        runs.unlike.add(name)
        twins = range(_FIRST_TWINS + 1, TWINS + 1)
        start = _open_call(launcher, alive[name], launcher.plan.seed)
        calls = [start, *(_losses_call(launcher, runs, name, twin) for twin in twins)]
        jobs[name].append(Job("trajectory", calls, spares=True))
    unequal = [name for name in others if not _passes(runs.judge_accuracies(baseline, name))]
    known = runs.list_accuracies(runs.twins)
    sides = unequal if baseline in known else unequal and [baseline]
    for name in [each for each in sides if each not in runs.twins and each in runs.first_twins]:
        first, *seeds = runs.seeds  # the first one is trained already
        twins = runs.twins[name] = {first: runs.first_twins[name]}
        parts = [_train_calls(launcher, alive[name], seed, partial(_keep_accuracy, twins, seed), 1) for seed in seeds]
        if launcher.plan.device != "cpu" and not _may_share_memory(launcher):
            parts = [list(itertools.chain(*parts))]
        jobs[name] += [Job("trajectory", calls, spares=True) for calls in parts]
    return jobs


def _passes(gate: Gate | None) -> bool:
    """Tell whether a gate passes, or cannot be judged."""
    return gate is None or gate.passed


def _make_jobs(launcher: Launcher, run: ContenderRun, runs: TrainingRuns, is_parted: bool) -> list[Job]:
    plan, name = launcher.plan, run.contender.name

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
    of_twins = [
        [start, first_twin],
        *([start, _losses_call(launcher, runs, name, twin)] for twin in range(2, _FIRST_TWINS + 1)),
    ]
    others = [seed for seed in runs.seeds if seed != plan.seed]
    of_seeds = [
        _train_calls(launcher, run, seed, partial(_keep_accuracy, runs.accuracies[name], seed), 0) for seed in others
    ]
    parts = [own, *of_twins, *of_seeds]
    if not is_parted:  # one after the other in the open session
        parts = [[*own, *(call for _, call in of_twins), *itertools.chain(*of_seeds)]]
    return [Job("trajectory", calls, spares=True) for calls in parts]


def _losses_call(launcher: Launcher, runs: TrainingRuns, name: str, twin: int) -> Call:
    return Call(Losses(_ulp(launcher.plan), twin), partial(setitem, runs.losses[name], twin))


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
    a = state.baseline.contender.name
    for b, current in state.certificates.items():
        losses = runs.judge_losses(a, b)
        if losses is None:
            state.certificates[b] = replace(current, complete=False)
        else:
            accuracies = runs.judge_accuracies(a, b)
            state.certificates[b] = current.extended([losses] if accuracies is None else [losses, accuracies])
    state.curves = {name: runs.curves(name) for name in runs.losses if runs.is_complete(name)}
    state.accuracies, state.twin_accuracies = (
        runs.list_accuracies(runs.accuracies),
        runs.list_accuracies(runs.twins),
    )
