"""Draw the initial values of both models of a pair beside its certificate, and compare their distributions."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from compare.base import tensors
from compare.base.commands import OwnWeights
from compare.base.interface import TRAIN, Arrays
from compare.execution.batch_trial import SMALLEST_BATCH
from compare.execution.jobs import Call, Job
from compare.execution.launcher import Launcher
from compare.execution.run_state import RunState
from compare.settings import contenders
from compare.settings.plan import Plan
from compare.user_models import initialisers

Draws = dict[str, dict[int, Arrays]]
"""Arrays by backend, seed and neutral name."""


def make_jobs(launcher: Launcher, state: RunState, draws: Draws) -> dict[str, Sequence[Job]]:
    """Return by contender the job that draws initial values: the first contender of each backend has one."""
    if state.pairing is None or state.pairing.is_alone:
        return {}
    names = dict[str, str]()
    for run in state.alive:
        names.setdefault(run.contender.backend, run.contender.name)
    return {name: [_make_job(launcher, backend, draws.setdefault(backend, {}))] for backend, name in names.items()}


def add_differences(state: RunState, draws: Draws) -> None:
    """Add the differences between the distributions of both sides to the pairing, if all have been drawn."""
    is_complete = all(draws.get(backend, {}).keys() == {*initialisers.SEEDS} for backend in ("torch", "jax"))
    if state.pairing is not None and is_complete:
        torch, jax = (list(draws[backend].values()) for backend in ("torch", "jax"))
        differences = initialisers.compare_initial_values(state.pairing.matching, torch, jax)
        state.pairing = replace(state.pairing, beside=tuple(differences))


def _make_job(launcher: Launcher, backend: str, drawn: dict[int, Arrays]) -> Job:
    """Return the job that fills `drawn`. It may run again, if it failed beside others."""

    def keep(seed: int, path: Path, _: object) -> None:
        drawn[seed] = tensors.load(path)

    calls = list[Call]()
    for seed in initialisers.SEEDS:
        path = launcher.scratch / f"initial{seed}-{backend}"
        command = _make_command(launcher.plan, backend, launcher.dataset, seed, path)
        calls.append(Call(command, partial(keep, seed, path)))
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
