"""Compare how a program trains in two processes, and before and after the timed blocks."""

from collections.abc import Sequence

from compare.base.commands import Restarted
from compare.base.interface import INFER, TRAIN
from compare.base.precisions import PRECISIONS

# Largest relative difference at later steps. Training amplifies rounding: one ulp in resnet50's weights moves the third
# loss by up to 12 % (benchmarks/h200, the envelopes of the certificates).
_LATER = 0.3

# Parameters that move by less are not compared: float32 rounds a change to 6e-8 of the value.
_MOVED = 1e-6
# How many times as far a parameter may move. In chaos, equal steps end elsewhere, but about as far away.
_FARTHER = 10.0


def describe_difference(
    timed: Sequence[float | None], trained: Sequence[float | None], precision: str, task: str = TRAIN
) -> str | None:
    """Say at which step the losses of a timed round differ from those of the training run, or return None.

    A loss that is not finite (None) differs from every other. Requests change nothing, so their losses stay close.
    """
    difference = _find_difference(timed, trained, precision, task)
    return difference and "the loss at step {} of a timed round is {}, in the training run it is {}".format(*difference)


def describe_change(starts: Restarted, precision: str, task: str = TRAIN) -> str | None:
    """Say how training changed after the timed blocks, or return None."""
    said = "the contender changed while it was timed: from the same weights and batches, "
    before, after = starts.before, starts.after
    difference = _find_difference(after.losses, before.losses, precision, task)
    if difference:
        return said + "the loss at step {} is {} after the timed blocks, before them it was {}".format(*difference)
    for name, moved_before in before.moved.items():
        moved_after = after.moved[name]
        if moved_before is None or moved_after is None:
            if moved_before is not moved_after:
                when = "before" if moved_before is None else "after"
                return f"{said}{name} becomes infinite {when} the timed blocks alone"
        elif max(moved_before, moved_after) > max(_MOVED, _FARTHER * min(moved_before, moved_after)):
            return (
                f"{said}{before.steps} steps move {name} by {moved_after:.2g} of its norm after the timed blocks, "
                f"before them by {moved_before:.2g}"
            )
    return None


def _find_difference(
    losses: Sequence[float | None], expected: Sequence[float | None], precision: str, task: str
) -> tuple[int, float | None, float | None] | None:
    """Return the first step with different losses, and both losses."""
    for step, (a, b) in enumerate(zip(losses, expected, strict=True), start=1):
        limit = PRECISIONS[precision].launch_difference if step == 1 or task == INFER else _LATER
        if a is None or b is None or abs(a - b) > limit * max(abs(b), 1e-6):
            return step, a, b
    return None
