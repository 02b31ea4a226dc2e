"""Timed rounds: fresh processes, all alive together, one working at a time, and proof that the work was done."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from compare.base.interruptions import ENDING, HeldSignals
from compare.execution import reproducibility
from compare.execution.child import Child
from compare.execution.launcher import BESIDE_OTHERS, Launcher, Progress
from compare.execution.round_validity import FOREIGN_CORES, Round, Window
from compare.execution.run_state import ContenderRun, RunState, attempt
from compare.machine import cpu, memory
from compare.settings.block_order import count_parts, make_palindrome, order_contenders
from compare.settings.plan import Plan

BLOCK_SECONDS: Mapping[str, float] = {"cpu": 0.02, "cuda": 0.1}
_PALINDROMES = 3
_SPINNING_SECONDS = 1.0
_NONE: Mapping[str, Child] = MappingProxyType({})
_TOO_MUCH = "the contenders do not fit in memory together"


def time_rounds(launcher: Launcher, state: RunState, progress: Progress, held: HeldSignals) -> None:
    """Time all rounds of a plan in its design, filling samples, windows and `state.rounds`.

    `alternating`: all contenders of a round are alive together and their blocks alternate. `turns`: one after the other
    in each round, because they do not fit in memory together: that is known when each has been measured alone, or shows
    when they are tried. Either way the last comes first in every other round. `sequential`: all rounds of one, then all
    of the next.

    Where Ctrl-C or a signal ends the program meanwhile, that is `held` for later, as is what comes afterwards; rounds
    that were whole stay, what was timed of the next is dropped.
    """
    try:
        _time_all(launcher, state, progress)
        held.begin()
    except ENDING as interruption:
        held.begin()
        held.keep(interruption)
        _keep_whole(state)


def _keep_whole(state: RunState) -> None:
    """Drop what not every contender has been timed in."""
    count = min((len(run.windows) for run in state.alive), default=0)  # the last that a round is given
    del state.rounds[count:]
    for run in state.runs:
        del run.samples[count:], run.windows[count:], run.unsteady[count:]


def _time_all(launcher: Launcher, state: RunState, progress: Progress) -> None:
    total = launcher.plan.rounds
    state.design = launcher.plan.design
    state.rounds = [Round(gpus=launcher.plan.gpus_of_round(number)) for number in range(total)]
    if state.design == "alternating" and (excess := _excess(launcher.plan, state)):
        state.design, state.design_reason = "turns", f"from round 1 on: {_TOO_MUCH}: {excess}"
    if state.design == "sequential":
        for run in state.alive:
            for number in range(total):
                progress(f"timed rounds of {run.contender.name}", number, total)
                if run.status == "ok":
                    _time(launcher, [run], state.rounds[number])
        return
    for number in range(total):
        progress("timed rounds", number, total)
        together = order_contenders(state.alive, number // count_parts(launcher.plan.devices, launcher.plan.rotation))
        if state.design == "alternating" and not _time(launcher, together, state.rounds[number]):
            state.design, state.design_reason = "turns", f"from round {number + 1} on: {_TOO_MUCH}"
        if state.design == "turns":
            _take_turns(launcher, together, state.rounds[number])


def _take_turns(launcher: Launcher, alive: Sequence[ContenderRun], seen: Round) -> None:
    """Time one round of these contenders, one after the other.

    On a GPU, whose memory an import does not take, their processes start side by side; on several machines each starts
    when its turn comes (`compare.execution.launcher.Launcher.children`).
    """
    waiting, plan = dict[str, Child](), launcher.plan
    try:
        if BESIDE_OTHERS[plan.device] and plan.cluster.count == 1:
            for step in (partial(_start, launcher, waiting, seen), partial(_greet, plan, waiting)):
                for run in alive:
                    if run.status == "ok":
                        _attempt(run, step)
        for run in alive:
            if run.status == "ok":
                _time(launcher, [run], seen, waiting)
            waiting.pop(run.contender.name, None)
    finally:
        for child in waiting.values():
            child.close()


def _excess(plan: Plan, state: RunState) -> str | None:
    """Return by how much what each of these held alone is more than the device has, None where it is not or unknown."""
    total = memory.device_bytes(plan.device)
    held = [(run.memory or {}).get("process_bytes") for run in state.alive]
    known = [each for each in held if each is not None]
    if total is None or len(known) < len(held) or sum(known) <= total:
        return None
    return f"alone they held {sum(known) / 2**30:,.1f} GiB in all, of {total / 2**30:,.1f}"


def _time(launcher: Launcher, alive: Sequence[ContenderRun], seen: Round, waiting: Mapping[str, Child] = _NONE) -> bool:
    """Time one round of these contenders; False where memory did not hold them together (nothing is then kept).

    Of the children that are `waiting` they take their own.
    """
    plan, names = launcher.plan, {run.contender.name for run in alive}
    known = [(each, each.reason, len(each.unsteady), len(each.cached_compile_seconds)) for each in alive]

    def undone() -> bool:
        """Whether memory did not hold them together; each is then as it was before."""
        if len(alive) == 1 or all(run.status != "oom" for run in alive):
            return False
        for run, reason, warmed, loads in known:
            run.status, run.reason = "ok", reason
            del run.unsteady[warmed:], run.cached_compile_seconds[loads:]
        return True

    children = {name: child for name, child in waiting.items() if name in names}
    try:
        timed = _ready(launcher, alive, children, seen)
        blocks: dict[str, list[_Block]] = {run.contender.name: [] for run in timed}
        pids = [child.pid for child in {**waiting, **children}.values()]
        # Void rounds of a GPU are told by what it does itself.
        families = {name: cpu.list_family(child.pid) for name, child in children.items() if plan.device == "cpu"}
        before = cpu.read(pids)
        for index in make_palindrome(len(timed), _PALINDROMES):
            run = timed[index]
            if run.status == "ok":
                _attempt(run, lambda o: blocks[o.contender.name].append(_block(launcher, children, o, families)))
        after = cpu.read(pids)
        if undone():
            return False
        if timed:
            seen.foreign_cores = max(seen.foreign_cores or 0.0, cpu.count_foreign_cores(before, after))
            if families:
                seen.idle_cores = max(seen.idle_cores or 0.0, *map(_idle_cores, blocks.values()))
        able = [run for run in timed if run.status == "ok"]
        for run in able:
            _attempt(run, lambda o: _prove(plan, children[o.contender.name], o))
        if undone():
            return False
        for run in able:  # a round that ends before its proofs is none
            seconds, windows, _ = zip(*blocks[run.contender.name], strict=True)
            seen.windows += windows
            run.samples.append(list(seconds))
            run.windows.append(list(windows))
        return True
    except ENDING:
        undone()
        raise
    finally:
        for child in children.values():
            child.close()


def _ready(
    launcher: Launcher, alive: Sequence[ContenderRun], children: dict[str, Child], seen: Round
) -> list[ContenderRun]:
    """Start, open and warm up a child for each contender; return those that got there.

    In the first round each is alone while it finds its programs in the cache, for that time is reported. Later those
    that may do so side by side, before any of them warms up; one that is compiled anew never does.
    """
    plan = launcher.plan
    able = [
        o
        for o in alive
        if o.cached_compile_seconds and launcher.may_load_beside_others(o) and not launcher.compiles_anew(o)
    ]
    together = able if len(able) > 1 else []
    loaded = {run.contender.name for run in together}
    steps: Sequence[tuple[Sequence[ContenderRun], Callable[[ContenderRun], object]]] = (
        ([o for o in alive if o.contender.name not in children], partial(_start, launcher, children, seen)),
        (alive, lambda o: _open(launcher, children[o.contender.name], o)),
        (alive, lambda o: children[o.contender.name].reply("open", plan.deadlines["open"])),
        (together, lambda o: children[o.contender.name].send("block", steps=o.opened["steps_per_dispatch"])),
        (together, lambda o: children[o.contender.name].reply("block", plan.deadlines["warm_up"])),
        (alive, lambda o: _warm_up(launcher, children[o.contender.name], o, loaded=o.contender.name in loaded)),
    )
    for asked, step in steps:
        for run in asked:
            if run.status == "ok":
                _attempt(run, step)
    return [run for run in alive if run.status == "ok"]


def _attempt(run: ContenderRun, action: Callable[[ContenderRun], object]) -> None:
    attempt(run, "timed rounds", partial(action, run))


def _start(launcher: Launcher, children: dict[str, Child], seen: Round, run: ContenderRun) -> None:
    first = seen.gpus.start if seen.gpus else 0
    children[run.contender.name] = launcher.start(run, purpose="round", first_gpu=first)


def _greet(plan: Plan, children: Mapping[str, Child], run: ContenderRun) -> None:
    children[run.contender.name].greet(plan.deadlines["start"])


def _open(launcher: Launcher, child: Child, run: ContenderRun) -> None:
    child.greet(launcher.plan.deadlines["start"])
    child.send("open", spec=launcher.spec(run))


def _warm_up(launcher: Launcher, child: Child, run: ContenderRun, *, loaded: bool) -> None:
    plan = launcher.plan
    seconds, steps = BLOCK_SECONDS[plan.device], run.steps_per_block
    warm = child.call("warm_up", plan.deadlines["warm_up"], block_seconds=seconds, steps=steps)
    run.steps_per_block = warm["steps_per_block"]
    run.unsteady.append(not warm["steady"])
    if not loaded and not launcher.compiles_anew(run):
        run.cached_compile_seconds.append(warm["compile_seconds"])
    trained = run.start
    if trained is not None:
        unlike = reproducibility.difference(warm["first_losses"], trained["first_losses"], plan.precision)
        run.unproven = run.unproven or unlike


class _Block(NamedTuple):
    """A timed block: its `seconds` a step, when it ran, and the CPU seconds that the others took meanwhile."""

    seconds: float
    window: Window
    idle: float


def _idle_cores(blocks: Sequence[_Block]) -> float:
    """Return how many cores the others kept busy during one contender's blocks."""
    lasted = sum(end - start for _, (start, end), _ in blocks)
    return sum(block.idle for block in blocks) / lasted if lasted else 0.0


def _block(
    launcher: Launcher, children: Mapping[str, Child], run: ContenderRun, families: Mapping[str, Sequence[int]]
) -> _Block:
    """Time one block, while the processes of all other contenders are looked at.

    An equal block, which does not count, leads in: it outlasts what the contender that worked before has left behind
    (caches, clocks, threads that still spin: those of LLVM's and Intel's OpenMP do so for 0.2 s). More of them lead in
    until the others are quiet, for a second at most.
    """
    child, steps, deadline = children[run.contender.name], run.steps_per_block, launcher.plan.deadlines["block"]
    others = [pid for name, pids in families.items() if name != run.contender.name for pid in pids]
    assert steps is not None  # set by _warm_up

    def trained() -> _Block:
        before, start = cpu.sum_seconds(others), launcher.now()
        seconds = child.call("block", deadline, steps=steps) / steps
        end = launcher.now()
        return _Block(seconds, (start, end), max(0.0, cpu.sum_seconds(others) - before))

    begun = launcher.now()
    while _idle_cores([trained()]) > FOREIGN_CORES and launcher.now() - begun < _SPINNING_SECONDS:
        pass
    return trained()


def _prove(plan: Plan, child: Child, run: ContenderRun) -> None:
    ask = partial(child.call, "proof", plan.deadlines["block"], steps=run.steps_per_block)
    proofs = [ask()]
    while _is_late(proofs[-1]) and len(proofs) < _PROOFS:
        proofs.append(ask())
    least = min(proofs, key=_left)
    missing = next((fault for fault in map(_missing, proofs) if fault is not None), None)
    if missing is not None:
        run.unproven = missing
    elif _is_late(least):
        run.unproven = (
            f"after wait() returned, {1e3 * least['unwaited_seconds']:.3g} ms of a block's work were still to be done "
            f"({1e3 * least['block_seconds']:.3g} ms had been timed)"
        )
    else:
        run.unproven = run.unproven or _changed(plan, child)


def _changed(plan: Plan, child: Child) -> str | None:
    """Return what of a contender is another after its blocks, every time that it is asked."""
    changed = None
    for _ in range(_PROOFS):
        begun = child.call("restart", plan.deadlines["open"])
        changed = reproducibility.change(begun["before"], begun["after"], plan.precision)
        if changed is None:
            break
    return changed


def _missing(proof: Mapping[str, Any]) -> str | None:
    """Return what work was not done at all, or not in finite numbers."""
    if proof["exported"] != proof["dispatched"]:
        return f"{proof['dispatched']} steps were dispatched but {proof['exported']} trained"
    if proof["not_finite"] is not None:
        return f"the loss was not finite at step {proof['not_finite']} of a timed round"
    return None


def _is_late(proof: Mapping[str, Any]) -> bool:
    return _left(proof) > _UNWAITED


def _left(proof: Mapping[str, Any]) -> float:
    """Return what `wait` left undone of a block, as a part of it."""
    return proof["unwaited_seconds"] / proof["block_seconds"]


# More of a block than this may not be unfinished when `wait` returns: the exports that tell of it jitter, too.
_UNWAITED = 0.25
# What `wait` leaves undone, it leaves every time; an export of much takes longer now and then (of resnet50 by 57 ms).
# And what has changed is changed every time; what rounding moves may be moved by chance.
_PROOFS = 3
