"""Whether two launches of one program train alike, by the losses of their first steps."""

from collections.abc import Mapping, Sequence

# Largest relative difference at the first step: kernel autotuning and atomics change the order of summation alone.
_FIRST: Mapping[str, float] = {
    "float64": 1e-9,
    "float32": 1e-4,
    "tf32": 1e-2,
    "bfloat16": 5e-2,
    "float16": 1e-2,
}

# And at later ones, for training amplifies it: one ulp in resnet50's weights moves the third loss by up to 12 %
# (benchmarks/h200, the envelopes of the certificates).
_LATER = 0.3


def difference(timed: Sequence[float | None], trained: Sequence[float | None], precision: str) -> str | None:
    """Return in words at which step the losses of a timed round are not those of the training run; None where they are.

    A loss that is not finite (None) is like no other.
    """
    for step, (a, b) in enumerate(zip(timed, trained, strict=True), start=1):
        limit = _FIRST[precision] if step == 1 else _LATER
        if a is None or b is None or abs(a - b) > limit * max(abs(b), 1e-6):
            return f"the loss at step {step} of a timed round is {a}, in the training run it is {b}"
    return None
