"""Time one round in fresh processes. All are alive together, and one works at a time."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from compare.base.commands import Block, CompilingBlock, Open, WarmUp
from compare.base.interruptions import ENDING
from compare.execution import reproducibility, work_proof
from compare.execution.child import Child
from compare.execution.launcher import Launcher
from compare.execution.round_validity import FOREIGN_CORES, Round, Window
from compare.execution.run_state import ContenderRun
from compare.machine import cpu
from compare.settings.block_order import make_palindrome

BLOCK_SECONDS: Mapping[str, float] = {"cpu": 0.02, "cuda": 0.1}
_PALINDROMES = 3
_MOST_LEAD_SECONDS = 1.0
_NO_CHILDREN: Mapping[str, Child] = MappingProxyType({})


def time_round(
    launcher: Launcher, runs: Sequence[ContenderRun], number: Round, waiting: Mapping[str, Child] = _NO_CHILDREN
) -> bool:
    """Time one round of these contenders. Return False, and keep nothing, if they do not fit in memory together.

    A contender uses its child among those that are `waiting`, if it has one there.
    """
    plan, names = launcher.plan, {run.contender.name for run in runs}
    before_round = [(run, run.reason, len(run.unsteady), len(run.cached_compile_seconds)) for run in runs]

    def undo_if_too_large() -> bool:
        """Restore every run, and return True, if memory did not hold the contenders together."""
        if len(runs) == 1 or all(run.status != "oom" for run in runs):
            return False
        for run, reason, warmed, loads in before_round:
            run.status, run.reason = "ok", reason
            del run.unsteady[warmed:], run.cached_compile_seconds[loads:]
        return True

    children = {name: child for name, child in waiting.items() if name in names}
    try:
        timed = _prepare_children(launcher, runs, children, number)
        blocks: dict[str, list[_Block]] = {run.contender.name: [] for run in timed}
        pids = [child.pid for child in {**waiting, **children}.values()]
        # On a GPU, the GPU's own telemetry decides which rounds are void.
        families = {name: cpu.list_family(child.pid) for name, child in children.items() if plan.device == "cpu"}
        before = cpu.read(pids)
        for index in make_palindrome(len(timed), _PALINDROMES):
            run = timed[index]
            attempt(
                run, lambda run=run: blocks[run.contender.name].append(_time_block(launcher, children, run, families))
            )
        after = cpu.read(pids)
        if undo_if_too_large():
            return False
        if timed:
            number.foreign_cores = max(number.foreign_cores or 0.0, cpu.count_foreign_cores(before, after))
            if families:
                number.idle_cores = max(number.idle_cores or 0.0, *map(_count_idle_cores, blocks.values()))
        able = [run for run in timed if run.status == "ok"]
        for run in able:
            attempt(run, partial(work_proof.prove, plan, children[run.contender.name], run))
        if undo_if_too_large():
            return False
        for run in able:  # after the proofs, because a round without them does not count
            name = run.contender.name
            windows = [block.window for block in blocks[name]]
            number.windows += windows
            run.samples.append([block.seconds for block in blocks[name]])
            run.windows.append(windows)
        return True
    except ENDING:
        undo_if_too_large()
        raise
    finally:
        for child in children.values():
            child.close()


def attempt(run: ContenderRun, action: Callable[[], object]) -> None:
    """Do something for a contender that has not failed, and mark it if that fails."""
    if run.status == "ok":
        run.attempt("timed rounds", action)


def start_child(launcher: Launcher, children: dict[str, Child], number: Round, run: ContenderRun) -> None:
    """Start a contender's child on the GPUs of the round."""
    first = number.gpus.start if number.gpus else 0
    children[run.contender.name] = launcher.start(run, purpose="round", first_gpu=first)


def _prepare_children(
    launcher: Launcher, runs: Sequence[ContenderRun], children: dict[str, Child], number: Round
) -> list[ContenderRun]:
    """Start, open and warm up a child for each contender, and return the contenders that succeed.

    In the first round each contender loads its programs from the cache alone, because that time is reported. Later they
    load side by side if they may, before any of them warms up. A contender that is compiled again always loads alone.
    Before that, the children that were started ahead end their imports.
    """

    def child(run: ContenderRun) -> Child:
        return children[run.contender.name]

    def open_session(run: ContenderRun) -> None:
        child(run).greet()
        child(run).send(Open(launcher.spec(run)))

    def load(run: ContenderRun) -> CompilingBlock:
        assert run.model is not None  # a contender without a model has failed before the rounds
        return CompilingBlock(run.model.steps_per_dispatch)

    able = [
        run
        for run in runs
        if run.cached_compile_seconds
        and launcher.may_load_beside_others(run)
        and not launcher.compiles_every_round(run)
    ]
    together = able if len(able) > 1 else []
    loaded = {run.contender.name for run in together}
    unstarted = [run for run in runs if run.contender.name not in children]
    steps: Sequence[tuple[Sequence[ContenderRun], Callable[[ContenderRun], object]]] = (
        (unstarted, partial(start_child, launcher, children, number)),
        (runs, open_session),
        (runs, lambda run: child(run).reply(Open(launcher.spec(run)))),
        (runs, lambda _: launcher.ready.settle()),
        (together, lambda run: child(run).send(load(run))),
        (together, lambda run: child(run).reply(load(run))),
        (runs, lambda run: _warm_up(launcher, child(run), run, loaded=run.contender.name in loaded)),
    )
    for step_runs, step in steps:
        for run in step_runs:
            attempt(run, partial(step, run))
    return [run for run in runs if run.status == "ok"]


def _warm_up(launcher: Launcher, child: Child, run: ContenderRun, *, loaded: bool) -> None:
    plan = launcher.plan
    times = child.call(WarmUp(BLOCK_SECONDS[plan.device], run.steps_per_block))
    run.steps_per_block = times.steps_per_block
    run.unsteady.append(not times.steady)
    if not loaded and not launcher.compiles_every_round(run):
        run.cached_compile_seconds.append(times.compile_seconds)
    if run.warm_up is not None:
        difference = reproducibility.describe_difference(times.first_losses, run.warm_up.first_losses, plan.precision)
        run.unproven = run.unproven or difference


class _Block(NamedTuple):
    """A timed block: its seconds per step, its window, and the CPU seconds that other contenders took meanwhile."""

    seconds: float
    window: Window
    idle: float


def _count_idle_cores(blocks: Sequence[_Block]) -> float:
    """Return how many cores other contenders kept busy during one contender's blocks."""
    duration = sum(end - start for _, (start, end), _ in blocks)
    return sum(block.idle for block in blocks) / duration if duration else 0.0


def _time_block(
    launcher: Launcher, children: Mapping[str, Child], run: ContenderRun, families: Mapping[str, Sequence[int]]
) -> _Block:
    """Time one block, and watch the processes of all other contenders meanwhile.

    An untimed block of the same length runs first. It outlasts what the contender before has left behind: caches,
    clocks, and threads that still spin (those of LLVM's and Intel's OpenMP spin for 0.2 s). More such blocks run until
    the others are quiet, for one second at most.
    """
    child, steps = children[run.contender.name], run.steps_per_block
    others = [pid for name, pids in families.items() if name != run.contender.name for pid in pids]
    assert steps is not None  # set by _warm_up

    def train_block() -> _Block:
        before, start = cpu.sum_seconds(others), launcher.now()
        seconds = child.call(Block(steps)) / steps
        end = launcher.now()
        return _Block(seconds, (start, end), max(0.0, cpu.sum_seconds(others) - before))

    start = launcher.now()
    while _count_idle_cores([train_block()]) > FOREIGN_CORES and launcher.now() - start < _MOST_LEAD_SECONDS:
        pass
    return train_block()
