"""Time the rounds of a plan until enough are valid. An interrupted run keeps its complete rounds."""

from collections.abc import Collection, Sequence
from functools import partial
from statistics import median
from typing import Any

import psutil

from compare.base import early_stopping, statistics
from compare.base.commands import Command, Open
from compare.base.interface import INFER
from compare.base.interruptions import ENDING, HeldSignals
from compare.base.statistics import Ratio
from compare.execution import ready_children, timed_round
from compare.execution.child import Child
from compare.execution.launcher import BESIDE_OTHERS, Launcher, Progress
from compare.execution.quiet import Patience
from compare.execution.round_validity import Round
from compare.execution.run_state import ContenderRun, RunState
from compare.execution.timed_block import attempt
from compare.machine import memory
from compare.settings.block_order import count_parts, order_contenders

MOST_VOID_IN_A_ROW = 6
"""Void rounds in a row after which a run that may stop early expects no quiet any more."""

_SHARE_AHEAD = 0.75
"""The share of memory that sessions which are opened ahead may take."""

_TOO_LARGE = "the contenders do not fit in memory together"


def time_rounds(launcher: Launcher, state: RunState, progress: Progress, signals: HeldSignals) -> None:
    """Time all rounds, and fill the samples and windows of every run and the rounds of the state.

    - `alternating`: all contenders of a round are alive together and their blocks alternate.
    - `turns`: in each round one contender runs after the other, because they do not fit in memory together. The sum of
      their memory shows that, or the first try.
    - `sequential`: all rounds of one contender, then all rounds of the next one.

    In the first two designs, the last contender comes first in every other round. After an interruption the complete
    rounds stay, and the unfinished one is dropped. From then on signals are held back.
    """
    try:
        _time_design(launcher, state, progress)
        signals.hold()
    except ENDING as interruption:
        signals.hold()
        signals.remember(interruption)
        _drop_unfinished(state)


def _drop_unfinished(state: RunState) -> None:
    """Drop the round that some contender has not finished."""
    count = min((len(run.windows) for run in state.alive), default=0)  # windows are the last that a round fills
    del state.rounds[count:]
    for run in state.runs:
        del run.samples[count:], run.windows[count:], run.unsteady[count:]
        for series in run.requests.values():
            series.keep_rounds(count)


def _time_design(launcher: Launcher, state: RunState, progress: Progress) -> None:
    plan = launcher.plan
    state.design = plan.design
    if state.design == "alternating" and (excess := _describe_excess(state)):
        state.design, state.design_reason = "turns", f"from round 1 on: {_TOO_LARGE}: {excess}"
    if state.design == "sequential":
        state.rounds = [Round(gpus=plan.gpus_of_round(number)) for number in range(plan.rounds)]
        for run in state.alive:
            for number in range(plan.rounds):
                progress(f"timed rounds of {run.contender.name}", number, plan.rounds)
                if run.status == "ok":
                    timed_round.time_round(launcher, [run], state.rounds[number], state.telemetry)
        return
    patience = Patience(launcher, lambda text: progress(text, len(state.rounds), plan.rounds))
    while needs_round(state):
        number = len(state.rounds)
        if plan.device == "cpu" and count_last_void(state):
            patience.wait()
        start_ahead(launcher, state)
        _open_ahead(launcher, state)

        def say(names: Sequence[str], number: int = number, ratios: str = _describe_ratios(state)) -> None:
            launcher.working = names
            progress(f"timed rounds{ratios}", number, max(plan.rounds, number + 1))

        say(())
        state.rounds.append(Round(gpus=plan.gpus_of_round(number)))
        together = order_contenders(state.alive, number // count_parts(plan.devices, plan.rotation))
        if state.design == "alternating" and not timed_round.time_round(
            launcher, together, state.rounds[number], state.telemetry, say=say
        ):
            state.design, state.design_reason = "turns", f"from round {number + 1} on: {_TOO_LARGE}"
        if state.design == "turns":
            _take_turns(launcher, state, together, say)
        launcher.working = ()


def count_last_void(state: RunState) -> int:
    """Return how many rounds in a row were void at the end."""
    void = state.find_void_rounds()
    count = 0
    while len(state.rounds) - 1 - count in void:
        count += 1
    return count


def start_ahead(launcher: Launcher, state: RunState, *, later: bool = False) -> None:
    """Start the children of the next rounds, so that their imports run side by side while nothing is timed.

    With `later` they start when no job must be alone, because that would wait for them.

    There are as many as cores and memory allow, up to the next look at the verdicts, at which timing may end. Before
    the first round they reach to the second look, if every process has a core. None start while the children of a round
    wait, because several rounds side by side keep all cores busy, where one does not.
    """
    coming = _list_coming_rounds(launcher, state)
    if state.rounds and coming and all(launcher.has_ahead(run, "round", coming[0]) for run in state.alive):
        return
    launcher.start_ahead([(run, "round", first_gpu) for first_gpu in coming for run in state.alive], later=later)


def _list_coming_rounds(launcher: Launcher, state: RunState) -> list[int]:
    """Return the numbers of the first GPUs of the coming rounds whose children can start ahead, in order."""
    plan, number = launcher.plan, len(state.rounds)
    processes = sum(max(1, launcher.devices_here(run)) for run in state.alive)
    stops = sorted({plan.rounds, *(look for look in plan.looks or () if look > number)})
    if not number and len(stops) > 1 and ready_children.have_cores(processes * stops[1]):
        del stops[0]
    numbers = range(number, max(number + 1, stops[0]))
    gpus = [plan.gpus_of_round(coming) for coming in numbers]
    return [each.start if each else 0 for each in gpus][: ready_children.count_at_once(processes)]


def _open_ahead(launcher: Launcher, state: RunState) -> None:
    """Open the sessions of the waiting children, and load their programs, side by side while nothing is timed.

    All of them together take three quarters of the memory at most. The first round loads its programs alone, because
    that time is reported, and so does a contender that searches for kernels when it loads.
    """
    sizes = [run.process_bytes for run in state.alive]
    plan = launcher.plan
    total = memory.read_device_bytes(plan.device) if plan.device == "cuda" else psutil.virtual_memory().available
    if state.design != "alternating" or total is None or not sizes or None in sizes:
        return
    most = int(_SHARE_AHEAD * total // max(1, sum(size for size in sizes if size)))
    taken = dict[int, int]()
    for first_gpu in _list_coming_rounds(launcher, state)[:most]:
        number = taken[first_gpu] = taken.get(first_gpu, -1) + 1
        for run in state.alive:
            commands: list[Command[Any]] = [Open(launcher.timed_spec(run))]
            if (
                (state.rounds or number)
                and plan.task != INFER
                and run.model is not None
                and launcher.may_load_ahead(run)
            ):
                commands.append(timed_round.make_load(run))
            launcher.work_ahead(run, "round", first_gpu, number, commands)
    launcher.ready.settle()


def needs_round(state: RunState) -> bool:
    """Tell whether another round must be timed.

    A void round is timed again, up to as many times as there are rounds in the plan. The void rules do not look at
    times, so this favours no contender. Rounds that rotate over several GPUs are not repeated, because each GPU must
    have its share. A plan with looks needs no round after a look at which it stops, and none after many void rounds
    in a row.
    """
    plan = state.plan
    if plan.looks and count_last_void(state) >= MOST_VOID_IN_A_ROW:
        return False
    void = state.find_void_rounds()
    valid = len(state.rounds) - len(void)
    most = 2 * plan.rounds if plan.rotation == 1 else plan.rounds
    if valid >= plan.rounds or len(state.rounds) >= most:
        return False
    if not plan.looks or valid not in plan.looks:
        return True
    ratios = _list_ratios(state, void, early_stopping.compute_confidence(valid, plan.looks))
    verdicts = [statistics.judge_ratio(ratio, plan.margin) for ratio in ratios]
    return early_stopping.explain_stop(valid, ratios, verdicts, plan.looks, plan.fail_above) is None


def _list_ratios(state: RunState, void: Collection[int], confidence: float) -> list[Ratio]:
    """Return the ratio of every contender that is alive to the baseline, if that is, by batch size."""
    if state.baseline.status != "ok":
        return []
    runs = [state.baseline, *(run for run in state.others if run.status == "ok")]
    samples = [[run.requests[size].samples for run in runs] for size in state.plan.batch_sizes or ()]
    return [
        ratio
        for each in samples or [[run.samples for run in runs]]
        for ratio in _estimate_ratios(void, each, confidence)
    ]


def _describe_ratios(state: RunState) -> str:
    """Return the interval of each contender's ratio so far, in brackets, empty before the third valid round."""
    void = state.find_void_rounds()
    others = [run for run in state.others if run.status == "ok"]
    if len(state.rounds) - len(void) < early_stopping.LEAST_ROUNDS or state.baseline.status != "ok" or not others:
        return ""
    valid = len(state.rounds) - len(void)
    looks = state.plan.looks
    confidence = early_stopping.compute_confidence(valid, looks) if looks else state.plan.confidence
    first = (state.plan.batch_sizes or (None,))[0]
    runs = (state.baseline, *others)
    samples = [run.samples if first is None else run.requests[first].samples for run in runs]
    ratios = _estimate_ratios(void, samples, confidence)
    texts = [f"{run.contender.name} {r.low:.3g} to {r.high:.3g}" for run, r in zip(others, ratios, strict=True)]
    where = "" if first is None else f" at batch {first}"
    return f" ({', '.join(texts)} of {state.baseline.contender.name}{where})"


def _estimate_ratios(void: Collection[int], samples: Sequence[Sequence[list[float]]], confidence: float) -> list[Ratio]:
    """Return the ratios of all but the first of these [contenders][rounds][blocks] to the first."""
    times = [[median(blocks) for number, blocks in enumerate(rounds) if number not in void] for rounds in samples]
    return [statistics.estimate_paired_ratio(times[0], contender, confidence) for contender in times[1:]]


def _take_turns(launcher: Launcher, state: RunState, runs: Sequence[ContenderRun], say: timed_round.Say) -> None:
    """Time the last round of these contenders, one after the other.

    On a GPU their processes start side by side, because an import takes none of its memory. On several machines each
    starts when its turn comes (`compare.execution.launcher.Launcher.children`).
    """
    waiting, plan, number = dict[str, Child](), launcher.plan, state.rounds[-1]
    try:
        if BESIDE_OTHERS[plan.device] and plan.cluster.count == 1:
            for run in runs:
                attempt(run, partial(timed_round.start_child, launcher, waiting, number, run))
            for run in runs:
                attempt(run, lambda run=run: waiting[run.contender.name].greet())
        for run in runs:
            if run.status == "ok":
                timed_round.time_round(launcher, [run], number, state.telemetry, waiting, say)
            waiting.pop(run.contender.name, None)
    finally:
        for child in waiting.values():
            child.close()


def _describe_excess(state: RunState) -> str | None:
    """Say by how much the contenders' memory exceeds the device's. Return None if it does not, or is unknown."""
    total = memory.read_device_bytes(state.plan.device)
    sizes = [run.process_bytes for run in state.alive]
    known = [size for size in sizes if size is not None]
    if total is None or len(known) < len(sizes) or sum(known) <= total:
        return None
    return f"alone they held {sum(known) / 2**30:,.1f} GiB in all, of {total / 2**30:,.1f}"
