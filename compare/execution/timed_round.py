"""Time one round in fresh processes. All are alive together, and one works at a time."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from compare.base.commands import Block, CompilingBlock, Open, Restart, WarmUp
from compare.base.interface import INFER
from compare.base.interruptions import ENDING
from compare.execution import reproducibility, round_validity, usage, work_proof
from compare.execution.child import Child, close_all
from compare.execution.launcher import BESIDE_OTHERS, Launcher
from compare.execution.round_validity import Round, Window
from compare.execution.run_state import ContenderRun
from compare.execution.telemetry import Telemetry
from compare.execution.timed_block import (
    BLOCK_SECONDS,
    PALINDROMES,
    Busy,
    attempt,
    count_idle_cores,
    time_after_lead,
)
from compare.execution.timed_requests import RequestRound
from compare.machine import cpu
from compare.settings.block_order import make_palindrome

_ALIKE = 1.5
"""The factor up to which the lengths of two contenders' blocks are made equal."""

CONTROL_SECONDS = 1.0
"""How often a GPU at its power limit sets its clocks anew, which swing by 5 % meanwhile (seen on an H200)."""

_NO_CHILDREN: Mapping[str, Child] = MappingProxyType({})

Say = Callable[[Sequence[str]], object]
"""Takes the names of the contenders that work now. It never runs in a timed block."""


def time_round(
    launcher: Launcher,
    runs: Sequence[ContenderRun],
    number: Round,
    telemetry: Telemetry,
    waiting: Mapping[str, Child] = _NO_CHILDREN,
    say: Say = lambda _: None,
) -> bool:
    """Time one round of these contenders. Return False, and keep nothing, if they do not fit in memory together.

    Args:
        launcher: starts the children, and knows the plan.
        runs: the contenders, in the order of the round. Each gets its samples, in seconds per step.
        number: the round. It gets the windows of its blocks, and the load that other programs made.
        telemetry: samples of the GPU, which show whether its power limit lowers its clocks. A CPU has none.
        waiting: children that were started before, by contender. A contender without one gets a new one.
        say: is told which contenders work.
    """
    began = launcher.now()
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
        timed = _prepare_children(launcher, runs, children, number, say)
        say([run.contender.name for run in timed])
        pids = [child.pid for child in {**waiting, **children}.values()]
        # On a GPU, the GPU's own telemetry decides which rounds are void.
        families = {name: cpu.list_family(child.pid) for name, child in children.items() if plan.device == "cpu"}
        work = (RequestRound if plan.task == INFER else _Steps)(launcher, children, families)
        is_first = not any(run.samples for run in timed)  # a contender's blocks are alike in all rounds
        if isinstance(work, _Steps) and is_first and telemetry.is_power_capped(began):
            work.lengthen_blocks(timed)
        programs, before = cpu.read_programs() if families else {}, cpu.read(pids)
        work.time(timed)
        after = cpu.read(pids)
        if undo_if_too_large():
            return False
        if timed:
            number.foreign_cores = max(number.foreign_cores or 0.0, cpu.count_foreign_cores(before, after))
            if families and number.foreign_cores > round_validity.find_limit(plan):
                number.busiest = cpu.name_busiest(programs, cpu.read_programs(), launcher.list_processes())
            if families:
                number.idle_cores = max(number.idle_cores or 0.0, *map(count_idle_cores, work.busy().values()))
        able = [run for run in timed if run.status == "ok"]
        work.prove(able)
        if undo_if_too_large():
            return False
        for run in able:  # after the proofs, because a round without them does not count
            number.windows += work.keep(run)
        if plan.task != INFER and not (number.gpus and number.gpus.start):  # NVML is read from the first GPU on
            usage.measure_energy(launcher, children, able)
        return True
    except ENDING:
        undo_if_too_large()
        raise
    finally:
        close_all(children.values())


def start_child(launcher: Launcher, children: dict[str, Child], number: Round, run: ContenderRun) -> None:
    """Start a contender's child on the GPUs of the round."""
    first = number.gpus.start if number.gpus else 0
    children[run.contender.name] = launcher.start(run, purpose="round", first_gpu=first)


def _prepare_children(
    launcher: Launcher, runs: Sequence[ContenderRun], children: dict[str, Child], number: Round, say: Say
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
        child(run).send(Open(launcher.timed_spec(run)))

    def finish_load_ahead(run: ContenderRun) -> None:
        if run.model is not None and child(run).has_ahead(make_load(run)):
            child(run).call(make_load(run))
            loaded.add(run.contender.name)

    def finish_load(run: ContenderRun) -> None:
        child(run).reply(make_load(run))
        loaded.add(run.contender.name)

    def warm_up(run: ContenderRun) -> None:
        say([run.contender.name])
        _warm_up(launcher, child(run), run, loaded=run.contender.name in loaded)

    def start_load(run: ContenderRun) -> None:
        if run.contender.name not in loaded:
            child(run).send(make_load(run))

    trained = () if launcher.plan.task == INFER else runs  # requests load one program for each batch size
    able = [
        run
        for run in trained
        if run.cached_compile_seconds
        and launcher.may_load_beside_others(run)
        and not launcher.compiles_every_round(run)
    ]
    new = [run for run in trained if run.steps_per_block is None]
    together, loaded = able if len(able) > 1 else [], set[str]()
    unstarted = [run for run in runs if run.contender.name not in children]
    steps: Sequence[tuple[Sequence[ContenderRun], Callable[[ContenderRun], object]]] = (
        (unstarted, partial(start_child, launcher, children, number)),
        (runs, open_session),
        (runs, lambda run: child(run).reply(Open(launcher.timed_spec(run)))),
        (runs, lambda _: launcher.ready.settle()),
        (trained, finish_load_ahead),
        (together, start_load),
        (together, lambda run: None if run.contender.name in loaded else finish_load(run)),
        (trained, warm_up),
    )
    for step_runs, step in steps:
        for run in step_runs:
            attempt(run, partial(step, run))
    if new:
        equalise_block_lengths([run for run in runs if run.steps_per_block is not None])
    return [run for run in runs if run.status == "ok"]


def equalise_block_lengths(runs: Sequence[ContenderRun]) -> None:
    """Give contenders of about the same speed blocks of equally many steps, in whole dispatches of each.

    The first step of a block is slower, because caches are cold. On two cores, a model with blocks of 4 steps took 4 %
    longer than itself with blocks of 8.
    """
    longest = last = 0
    for run in sorted(runs, key=lambda run: run.steps_per_block or 0, reverse=True):
        steps = run.steps_per_block or 0
        if _ALIKE * steps < last or not longest:
            longest = steps
        last, unit = steps, run.model.steps_per_dispatch if run.model else 1
        run.steps_per_block = unit * max(1, round(longest / unit))


def make_load(run: ContenderRun) -> CompilingBlock:
    """Return the command that loads a contender's programs."""
    assert run.model is not None  # a contender without a model has failed before the rounds
    return CompilingBlock(run.model.steps_per_dispatch)


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


class _Steps:
    """The training steps of one round. Nothing of it is kept before `keep`."""

    def __init__(
        self, launcher: Launcher, children: Mapping[str, Child], families: Mapping[str, Sequence[int]]
    ) -> None:
        self._launcher, self._children, self._families = launcher, children, families
        self._palindromes = PALINDROMES
        self._blocks: dict[str, list[tuple[float, Busy]]] = {}

    def lengthen_blocks(self, runs: Sequence[ContenderRun]) -> None:
        """Make each block last about one period of a GPU's power control, and take fewer of them.

        A shorter block shows a part of the clocks' wave, and not its mean.
        """
        self._palindromes = 1
        for run in runs:
            attempt(run, partial(self._lengthen_block, run))
        equalise_block_lengths([run for run in runs if run.status == "ok"])

    def _lengthen_block(self, run: ContenderRun) -> None:
        assert run.steps_per_block is not None  # set by _warm_up
        seconds = self._children[run.contender.name].call(Block(run.steps_per_block))
        unit = run.model.steps_per_dispatch if run.model else 1
        steps = unit * round(run.steps_per_block * CONTROL_SECONDS / seconds / unit)
        run.steps_per_block = max(run.steps_per_block, steps)

    def time(self, runs: Sequence[ContenderRun]) -> None:
        """Time the blocks of all contenders in turn."""
        self._blocks = {run.contender.name: [] for run in runs}
        earlier = [len(run.samples[0]) // 2 for run in runs if run.samples]
        for index in make_palindrome(len(runs), earlier[0] if earlier else self._palindromes):
            attempt(runs[index], lambda run=runs[index]: self._time_block(run))

    def busy(self) -> dict[str, list[Busy]]:
        """Return the blocks of each contender."""
        return {name: [busy for _, busy in blocks] for name, blocks in self._blocks.items()}

    def prove(self, runs: Sequence[ContenderRun]) -> None:
        """Prove the work of all contenders that have not failed. On a GPU they start again side by side."""
        plan = self._launcher.plan
        for run in runs:
            attempt(run, partial(work_proof.prove_work, plan, self._children[run.contender.name], run))
        for run in runs if BESIDE_OTHERS[plan.device] else ():
            if run.unproven is None:
                attempt(run, partial(self._children[run.contender.name].send_ahead, [Restart()]))
        for run in runs:
            attempt(run, partial(work_proof.prove_start, plan, self._children[run.contender.name], run))

    def keep(self, run: ContenderRun) -> list[Window]:
        """Add the round to what the contender has reported, and return its windows."""
        blocks = self._blocks[run.contender.name]
        windows = [busy.window for _, busy in blocks]
        run.samples.append([seconds for seconds, _ in blocks])
        run.windows.append(windows)
        return windows

    def _time_block(self, run: ContenderRun) -> None:
        name, steps = run.contender.name, run.steps_per_block
        others = [pid for other, pids in self._families.items() if other != name for pid in pids]
        assert steps is not None  # set by _warm_up

        def train() -> float:
            return self._children[name].call(Block(steps)) / steps

        self._blocks[name].append(time_after_lead(self._launcher, others, train, train))
