"""Time the requests of one round: each batch size in turn, with the blocks of all contenders alternating."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compare.base.commands import Block, ChooseBatch, Requests, RequestTimes, WarmUp
from compare.execution import reproducibility, work_proof
from compare.execution.child import Child
from compare.execution.launcher import Launcher
from compare.execution.round_validity import Window
from compare.execution.run_state import ContenderRun
from compare.execution.timed_block import BLOCK_SECONDS, Busy, attempt, time_after_lead
from compare.settings.block_order import make_palindrome

LEAST_REQUESTS = 1000
"""Requests of a contender in a round, from which p99 is known. Slow requests are fewer, see `MOST_SECONDS`."""

MOST_SECONDS: Mapping[str, float] = {"cpu": 1.5, "cuda": 60.0}
"""Longest time of the requests of one batch size in a contender's round."""

_LEAD_SECONDS = 0.25
_PALINDROMES = 1
"""A block of requests is long, so two of each contender are enough, and leads take less time."""

_BLOCKS = 2 * _PALINDROMES


@dataclass
class _Series:
    """What one contender's requests of one batch size took in this round."""

    requests: list[float] = field(default_factory=list[float])
    queued: list[float] = field(default_factory=list[float])
    enqueued: list[float] = field(default_factory=list[float])
    busy: list[Busy] = field(default_factory=list[Busy])


class RequestRound:
    """The requests of one round. Nothing of it is kept before `keep`."""

    def __init__(
        self, launcher: Launcher, children: Mapping[str, Child], families: Mapping[str, Sequence[int]]
    ) -> None:
        self._launcher, self._children, self._families = launcher, children, families
        self._series: dict[tuple[str, int], _Series] = {}
        self._unsteady = dict[str, bool]()
        self._compile_seconds = dict[str, float]()

    def time(self, runs: Sequence[ContenderRun]) -> None:
        """Warm up, time and prove the requests of every batch size."""
        for size in self._launcher.plan.batch_sizes or ():
            for run in runs:
                attempt(run, lambda run=run, size=size: self._warm_up(run, size))
            for index in make_palindrome(len(runs), _PALINDROMES):
                attempt(runs[index], lambda run=runs[index], size=size: self._time_block(run, size))
            for run in runs:
                attempt(run, lambda run=run, size=size: self._prove(run, size))

    def prove(self, runs: Sequence[ContenderRun]) -> None:
        """Do nothing, because `time` proves the requests of each batch size before it goes on."""

    def busy(self) -> dict[str, list[Busy]]:
        """Return the blocks of each contender."""
        blocks = dict[str, list[Busy]]()
        for (name, _), series in self._series.items():
            blocks.setdefault(name, []).extend(series.busy)
        return blocks

    def keep(self, run: ContenderRun) -> list[Window]:
        """Add the round to what the contender has reported, and return its windows."""
        every = list[Window]()
        for size in self._launcher.plan.batch_sizes or ():
            series, known = self._series[run.contender.name, size], run.requests[size]
            windows = [block.window for block in series.busy]
            known.samples.append(series.requests)
            known.queued.append(series.queued)
            known.enqueued.append(sum(series.enqueued) / len(series.enqueued))
            known.windows.append(windows)
            every += windows
        run.unsteady.append(self._unsteady[run.contender.name])
        run.cached_compile_seconds.append(self._compile_seconds[run.contender.name])
        run.windows.append(every)
        return every

    def _warm_up(self, run: ContenderRun, size: int) -> None:
        child, plan, known = self._children[run.contender.name], self._launcher.plan, run.requests[size]
        child.call(ChooseBatch(size))
        times = child.call(WarmUp(BLOCK_SECONDS[plan.device], known.steps_per_block))
        known.steps_per_block, known.program = times.steps_per_block, times.program
        name = run.contender.name
        self._unsteady[name] = self._unsteady.get(name, False) or not times.steady
        self._compile_seconds[name] = self._compile_seconds.get(name, 0.0) + times.compile_seconds
        self._series[name, size] = _Series()
        difference = reproducibility.describe_difference(
            times.first_losses, known.first_losses, plan.precision, plan.task
        )
        run.unproven = run.unproven or difference

    def _time_block(self, run: ContenderRun, size: int) -> None:
        name, known = run.contender.name, run.requests[size]
        child, steps = self._children[name], known.steps_per_block or 1
        others = [pid for other, pids in self._families.items() if other != name for pid in pids]
        series = self._series[name, size]
        if known.requests_per_block is None:
            seconds = child.call(Block(steps)) / steps
            known.requests_per_block = choose_count(seconds, MOST_SECONDS[self._launcher.plan.device])
        count = known.requests_per_block
        lead = min(count, steps * math.ceil(_LEAD_SECONDS / BLOCK_SECONDS[self._launcher.plan.device]))

        def work() -> tuple[RequestTimes, float]:
            return child.call(Requests(count)), child.call(Block(steps)) / steps

        (times, queued), busy = time_after_lead(self._launcher, others, lambda: child.call(Requests(lead)), work)
        series.requests += times.seconds
        series.enqueued.append(times.enqueued)
        series.queued.append(queued)
        series.busy.append(busy)

    def _prove(self, run: ContenderRun, size: int) -> None:
        steps = run.requests[size].steps_per_block or 1
        work_proof.prove(self._launcher.plan, self._children[run.contender.name], run, steps)


def choose_count(seconds: float, most_seconds: float) -> int:
    """Return the requests of one block, if a request takes so long: enough for p99, unless they would take too long."""
    wanted, possible = math.ceil(LEAST_REQUESTS / _BLOCKS), int(most_seconds / _BLOCKS / max(seconds, 1e-9))
    return max(2, min(wanted, possible))
