"""Whether a program trains alike when it is launched again, and when it begins anew after the timed blocks."""

from collections.abc import Mapping, Sequence
from typing import Any

from compare.base.precisions import PRECISIONS

# Largest relative difference at later steps. Training amplifies rounding: one ulp in resnet50's weights moves the third
# loss by up to 12 % (benchmarks/h200, the envelopes of the certificates).
_LATER = 0.3

# Parameters that move by less are not asked about: what is added to float32 is rounded to 6e-8 of it.
_MOVED = 1e-6
# How many times as far a parameter may move: where training is chaos, the same steps end elsewhere, about as far away.
_FARTHER = 10.0


def difference(timed: Sequence[float | None], trained: Sequence[float | None], precision: str) -> str | None:
    """Return in words at which step the losses of a timed round are not those of the training run; None where they are.

    A loss that is not finite (None) is like no other.
    """
    found = _unlike(timed, trained, precision)
    return found and "the loss at step {} of a timed round is {}, in the training run it is {}".format(*found)


def change(first: Mapping[str, Any], again: Mapping[str, Any], precision: str) -> str | None:
    """Return in words what of a program is another after timed blocks than before; None where it begins anew as it did.

    How it began each time is what `compare.worker.server.Worker.restart` has of it.
    """
    said = "the contender changed while it was timed: from the same weights and batches, "
    found = _unlike(again["losses"], first["losses"], precision)
    if found:
        return said + "the loss at step {} is {} after the timed blocks, before them it was {}".format(*found)
    for name, before in first["moved"].items():
        after = again["moved"][name]
        if before is None or after is None:
            if before is not after:
                return f"{said}{name} becomes infinite {'before' if before is None else 'after'} the timed blocks alone"
        elif max(before, after) > max(_MOVED, _FARTHER * min(before, after)):
            return (
                f"{said}{first['steps']} steps move {name} by {after:.2g} of its norm after the timed blocks, "
                f"before them by {before:.2g}"
            )
    return None


def _unlike(
    losses: Sequence[float | None], expected: Sequence[float | None], precision: str
) -> tuple[int, float | None, float | None] | None:
    """Return the first step whose losses differ, and both."""
    for step, (a, b) in enumerate(zip(losses, expected, strict=True), start=1):
        limit = PRECISIONS[precision].launch_difference if step == 1 else _LATER
        if a is None or b is None or abs(a - b) > limit * max(abs(b), 1e-6):
            return step, a, b
    return None
