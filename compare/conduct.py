"""A plan carried out from beginning to end: progress shown, everything judged, the result file written."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare import judgement, results, runner
from compare.plan import Plan
from compare.report import progress


def carried_out(
    plan: Plan, command: Sequence[str], *, seeds: int | None = None, part: str = ""
) -> tuple[dict[str, Any], Path]:
    """Return the result of a plan, and its file in the plan's folder.

    Contenders are trained, certified and timed; with `seeds`, the training runs per contender, they are certified by
    all gates and nothing is timed. The result says that `command` asked for it. `part` is said before each phase.

    Raises:
        Refused: where the result cannot be written there, with the place that it is at instead.
    """
    with progress.shown(part) as advance:
        outcomes = runner.run(plan, advance) if seeds is None else runner.agree(plan, seeds, advance)
    result = judgement.result(plan, outcomes, command)
    return result, results.kept(result, plan.out)
