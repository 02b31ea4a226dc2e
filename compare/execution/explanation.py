"""Profile a step of each contender in processes of their own, and explain the comparison by them.

No profiler runs while anything is timed: profiles are taken before the rounds, and their processes end first.
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from compare.base import profiles
from compare.base.commands import Open, ProfileSteps
from compare.base.interface import KnobValues
from compare.base.profiles import Profile, ProfileReply
from compare.execution import jobs
from compare.execution.jobs import Call, Job, Queue
from compare.execution.launcher import BESIDE_OTHERS, CAPTURED, EXPLAINED, UNCAPTURED, Launcher, Progress
from compare.execution.run_state import ContenderRun, RunState, StepProfiles
from compare.explain import explain as explaining
from compare.explain import timeline
from compare.explain.explain import Evidence
from compare.results.explanation import Explanation
from compare.results.model import Contender

TIMELINE = "timeline.json"
"""The file beside a result that shows the kernels of all contenders on one time line (ui.perfetto.dev)."""

_STEPS = {"cuda": 3, "cpu": 11}
"""Profiled steps. Other programs disturb a CPU, so medians over more steps count there."""
_PLAIN = "profiled step"
"""The purpose of a child that profiles a step that is not captured."""


def measure(launcher: Launcher, state: RunState, progress: Progress) -> None:
    """Profile the contenders of a plan that asks for it. What fails leaves a reason and no failed contender."""
    if not launcher.plan.explain:
        return
    queues = list[Queue]()
    for run in state.alive:
        state.profiles[run.contender.name] = StepProfiles()
        for purpose in (UNCAPTURED, CAPTURED) if is_captured(launcher, run) else (_PLAIN,):
            queues.append(_queue(launcher, run, state.profiles[run.contender.name], purpose))
    if BESIDE_OTHERS[launcher.plan.device]:
        progress("profile", 0, len(queues))
        # An import takes seconds, and most profiles must be taken alone.
        launcher.start_ahead([(queue.run, queue.purpose, 0) for queue in queues])
        launcher.ready.settle()
        jobs.run_jobs(launcher, queues, partial(progress, "profile"))
    else:
        for index, queue in enumerate(queues):
            progress("profile", index, len(queues))
            jobs.run_jobs(launcher, [queue], lambda _done, _total: None)
    for queue in queues:
        if queue.run.status != "ok":
            found = state.profiles[queue.run.contender.name]
            found.reason = "; ".join(filter(None, (found.reason, queue.run.reason)))


def is_captured(launcher: Launcher, run: ContenderRun) -> bool:
    """Tell whether a contender's timed step is a captured graph. On a GPU, XLA captures some kernels by default."""
    knobs = launcher.plan.knobs(run.contender)
    if launcher.plan.device != "cuda":
        return False
    return bool(knobs.get("graph-capture")) or run.contender.backend == "jax"


def _queue(launcher: Launcher, run: ContenderRun, found: StepProfiles, purpose: str) -> Queue:
    path = launcher.scratch / f"profile-{run.contender.file_name}-{purpose.partition(' ')[0]}.json"
    is_timed = purpose != UNCAPTURED
    knobs = {**launcher.plan.knobs(run.contender), **EXPLAINED.get(purpose, {})}
    if purpose == CAPTURED and run.contender.backend == "jax":
        knobs["steps-per-dispatch"] = 1  # the profiler does not see the kernels of a captured loop

    def keep(reply: ProfileReply) -> None:
        profile = _load(path)
        if purpose == CAPTURED:
            found.captured = profile
        else:
            found.uncaptured = profile
        if is_timed:
            found.reply = reply
        found.reason = "; ".join(filter(None, (found.reason, reply.reason)))

    command = ProfileSteps(_STEPS[launcher.plan.device], str(path), is_timed, str(launcher.scratch / "profile.lock"))
    calls = [Call(Open(launcher.spec(run, knobs=knobs))), Call(command, keep)]
    alone = not launcher.may_load_beside_others(run)
    # A copy of the contender's state: a failure here is not the contender's.
    own = ContenderRun(run.contender, held_bytes=run.held_bytes)
    return Queue(
        own, [Job(purpose, calls, alone=alone, memory=run.held_bytes)], most=1, purpose=purpose, divides_cores=False
    )


def _load(path: Path) -> Profile | None:
    try:
        return profiles.read(path.read_text(encoding="utf-8"))
    except (OSError, TypeError, ValueError):
        return None  # the reply has the reason
    finally:
        path.unlink(missing_ok=True)


def explain(state: RunState, contenders: Sequence[Contender]) -> Explanation | None:
    """Return the explanation of a run, or None if the plan does not ask for it."""
    if not state.plan.explain:
        return None
    return explaining.explain([_evidence(state, contender) for contender in contenders], state.plan.precision)


def _evidence(state: RunState, contender: Contender) -> Evidence:
    found = state.profiles.get(contender.name, StepProfiles(reason=contender.reason))
    knobs: KnobValues = next(
        state.plan.knobs(run.contender) for run in state.runs if run.contender.name == contender.name
    )
    times = contender.step_seconds
    return Evidence(
        contender.name,
        contender.backend,
        knobs,
        contender.settings,
        None if times is None else times.estimate or times.median,
        found.uncaptured,
        found.captured,
        found.reply,
        found.reason,
    )


def draw_timeline(state: RunState) -> bytes | None:
    """Return the time line of all profiled contenders as a JSON trace, or None if there is no profile."""
    found: dict[str, Profile] = {}
    for name, each in state.profiles.items():
        profile = each.captured or each.uncaptured
        if profile is not None:
            found[name] = profile
    return json.dumps(timeline.make(found)).encode() if found else None
