"""Draw the initial values of both models of a pair beside its certificate, and compare their distributions."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from compare.base import tensors
from compare.base.commands import OwnWeights
from compare.base.interface import TRAIN, Arrays
from compare.execution.jobs import Call, Job
from compare.execution.launcher import Launcher
from compare.execution.run_state import RunState
from compare.settings import contenders
from compare.settings.plan import Plan
from compare.user_models import initialisers

SMALLEST_BATCH = 2
"""The batch where only a model's variables or layers are asked for."""

Draws = defaultdict[str, list[Arrays]]
"""By backend, an array by neutral name for each seed."""


def make_jobs(launcher: Launcher, state: RunState, draws: Draws) -> dict[str, Sequence[Job]]:
    """Return by contender the job that draws initial values: the first contender of each backend has one."""
    if state.pairing is None or state.pairing.is_alone:
        return {}
    first = {run.contender.backend: run.contender.name for run in reversed(state.alive)}
    return {name: [_make_job(launcher, backend, draws)] for backend, name in first.items()}


def judge(state: RunState, draws: Draws) -> None:
    """Add the differences between the distributions of both sides to the pairing, if both have been drawn."""
    complete = all(len(draws[backend]) == len(initialisers.SEEDS) for backend in ("torch", "jax"))
    if state.pairing is not None and complete:
        differences = initialisers.compare_initial_values(state.pairing.matching, draws["torch"], draws["jax"])
        state.pairing = replace(state.pairing, beside=tuple(differences))


def _make_job(launcher: Launcher, backend: str, draws: Draws) -> Job:
    paths = [launcher.scratch / f"initial{seed}-{backend}" for seed in initialisers.SEEDS]
    calls = [
        Call(_make_command(launcher.plan, backend, launcher.dataset, seed, path), lambda _, path=path: keep(path))
        for seed, path in zip(initialisers.SEEDS, paths, strict=True)
    ]

    def keep(path: Path) -> None:
        draws[backend].append(tensors.load(path))

    return Job("initial values", calls, spares=True)


def _make_command(plan: Plan, backend: str, dataset: Path, seed: int, path: Path) -> OwnWeights:
    model = plan.workload.model
    drawn = replace(model, arguments={**model.arguments, "initial_seed": seed})
    plain = contenders.parse(contenders.choose_plain_contenders(plan.workload), least=1)
    (contender,) = [each for each in plain if each.backend == backend]
    spec = replace(plan, task=TRAIN, workload=replace(plan.workload, model=drawn)).spec(
        contender, dataset, precision="float32", batch_size=SMALLEST_BATCH, accumulate=1
    )
    return OwnWeights(spec, str(path))
