"""The likely cause of a disagreement, read off the pattern of tensors that disagree."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from compare.agreement.measures import compute_changes, sort_by_execution
from compare.base import chunks
from compare.base.interface import Array, Arrays

_SAME_FACTOR = 1e-6
_FLOAT32 = (1e-9, 2e-7)  # relative errors of values that one side has in float32
_OF_ONE = 10.0  # how many times the typical part of one element an element may count for


def find_cause(baseline: Arrays, contender: Arrays, failing: Sequence[str]) -> str | None:
    """Return a likely cause in words for the failing tensors of two float64 records, None where no pattern fits."""
    a, b = compute_changes(baseline), compute_changes(contender)
    names = sort_by_execution(list(failing))
    patterns: tuple[Callable[[], str | None], ...] = (
        lambda: _gradients_scaled(a, b, names),
        lambda: _bias_correction(baseline, a, b, names),
        lambda: _only_buffers(names),
        lambda: _only_evaluation(a, names),
        lambda: _only_later_steps(names),
        lambda: _only_updates(names),
        lambda: _trained_once(a, b, names),
        lambda: _other_order(a, b, names),
        lambda: _float32_rounding(a, b, names),
        lambda: _first_layer(a, names),
        lambda: _after_the_layers(names),
    )
    return next((cause for pattern in patterns if (cause := pattern())), None)


def find_switched_outputs(exact: Arrays, rounded: Arrays, gradient: str, error: float) -> str | None:
    """Return in words that rounding moved outputs of a layer across zero, if that explains its gradient's error.

    A ReLU behind the layer then opens or shuts for these outputs, which changes the gradient. The error is about the
    square root of their share of all outputs. Return None if no sign changed, or if the error is larger.

    Args:
        exact, rounded: one side's records in float64 and at the timed precision.
        gradient: the name of the gradient that fails.
        error: its relative error.
    """
    stage, _, name = gradient.partition("/gradient/")
    layer = name.rpartition(".")[0]
    outputs = [record.get(f"{stage}/activation/{layer}") for record in (exact, rounded)]
    if outputs[0] is None or outputs[1] is None:
        return None
    size = outputs[0].size
    count = sum(int(np.count_nonzero((a > 0) != (b > 0))) for a, b in chunks.iterate_chunks(outputs[0], outputs[1]))
    if error > _OF_ONE * math.sqrt(count / size):
        return None
    return (
        f"rounding moves {count:,} of {size:,} outputs of {layer} across zero, where a ReLU opens or shuts; another "
        "--seed or a larger --batch-size tells whether that is all"
    )


def _kind(name: str) -> str:
    stage, _, rest = name.partition("/")
    return rest.partition("/")[0] if stage.startswith("step") else stage


def _gradients_scaled(a: Arrays, b: Arrays, names: Sequence[str]) -> str | None:
    gradients = [name for name in a if name.startswith("step1/gradient/")]
    if not gradients or any(_kind(name) in ("activation", "logits") for name in names if name.startswith("step1/")):
        return None
    factors = [_factor(a[name], b[name]) for name in gradients]
    known = [factor for factor in factors if factor is not None]
    if len(known) < len(factors) or max(known) - min(known) > _SAME_FACTOR or abs(known[0] - 1) < _SAME_FACTOR:
        return None
    return f"every gradient is scaled by {known[0]:.6g}: loss reduction (sum or mean, loss scale not undone)"


def _bias_correction(baseline: Arrays, a: Arrays, b: Arrays, names: Sequence[str]) -> str | None:
    first = next((name for name in names if name.startswith("step1/buffer/")), None)
    layer = "" if first is None else first.removeprefix("step1/buffer/").rpartition(".")[0]
    output = a.get(f"step1/activation/{layer}")
    if first is None or output is None or not first.endswith(".var"):
        return None
    count = output.size // output.shape[-1]
    start = baseline[f"initial/{first.removeprefix('step1/buffer/')}"]
    # With running = start + momentum * (batch - start), the batch's part is the change plus momentum * start.
    for momentum in (0.1, 0.01, 0.001):
        factor = _factor(a[first] + momentum * start, b[first] + momentum * start)
        if factor is not None and min(abs(factor - count / (count - 1)), abs(factor - (count - 1) / count)) < 1e-9:
            return f"running variance differs by n/(n-1) with n = {count}: biased against unbiased variance"
    return None


def _only_buffers(names: Sequence[str]) -> str | None:
    training = [name for name in names if name.startswith("step")]
    if training and all(_kind(name) == "buffer" for name in training):
        return "only buffers differ in training: running statistics (momentum, biased or unbiased variance)"
    return None


def _only_evaluation(a: Arrays, names: Sequence[str]) -> str | None:
    if not all(name.startswith("evaluation/") for name in names):
        return None
    if any(_kind(name) == "buffer" for name in a):
        return "only evaluation differs: running variance or epsilon used in evaluation, or batch statistics there"
    return "only evaluation differs, without running statistics: something that is done in training alone, or not then"


def _only_later_steps(names: Sequence[str]) -> str | None:
    if any(name.startswith("step1/") for name in names):
        return None
    if any(_kind(name) == "update" for name in names):
        return "the first step agrees: momentum, Nesterov form, bias correction or schedule"
    return None


def _only_updates(names: Sequence[str]) -> str | None:
    first = [name for name in names if name.startswith("step1/")]
    if first and all(_kind(name) == "update" for name in first):
        return "gradients agree, updates do not: learning rate, epsilon, weight decay, clipping or optimizer form"
    return None


def _trained_once(a: Arrays, b: Arrays, names: Sequence[str]) -> str | None:
    first = names[0] if names else ""
    if "/gradient/" not in first or first not in a or first not in b or a[first].any() == b[first].any():
        return None
    side = "baseline" if b[first].any() else "contender"
    frozen = [name for name in names if name.startswith("step1/gradient/") and a[name].any() != b[name].any()]
    more = f" and {len(frozen) - 1} more" if len(frozen) > 1 else ""
    return (
        f"{first.rpartition('/gradient/')[2]}{more} trains on one side only, its gradient is zero in the {side}: "
        "requires_grad = False or detach() in torch, jax.lax.stop_gradient in flax"
    )


def _other_order(a: Arrays, b: Arrays, names: Sequence[str]) -> str | None:
    """Tell whether the first activation that differs has the same channels on both sides in another order."""
    first = names[0] if names else ""
    if not first.startswith("step1/activation/") or first not in b or a[first].shape != b[first].shape:
        return None
    channels = a[first].shape[-1]
    sides = [side[first].reshape(-1, channels) for side in (a, b)]
    weights = np.random.default_rng(0).normal(size=len(sides[0]))  # one number for each channel, which tells it apart
    sums = [weights @ side for side in sides]
    orders = [np.argsort(each) for each in sums]
    same = np.allclose(sums[0][orders[0]], sums[1][orders[1]], rtol=1e-9, atol=1e-12)
    if not same or np.array_equal(orders[0], orders[1]):
        return None
    layer = first.removeprefix("step1/activation/").removesuffix(".input")
    return (
        f"{'the input of ' if first.endswith('.input') else ''}{layer} has the same channels on both sides in another "
        "order: the parts of a concatenation, a split, a shuffle or a reshape"
    )


def _float32_rounding(a: Arrays, b: Arrays, names: Sequence[str]) -> str | None:
    """Tell whether the first activation that differs does so by as little as float32 rounds."""
    first = names[0] if names else ""
    is_output = first.startswith(("step1/activation/", "step1/logits"))
    if not is_output or first not in b or a[first].shape != b[first].shape:
        return None
    error = float(np.linalg.norm(a[first] - b[first]) / (np.linalg.norm(a[first]) or 1.0))
    if not is_float32_rounding(error):
        return None
    layer = first.removeprefix("step1/").removeprefix("activation/").removesuffix(".input")
    return (
        f"{'the input of ' if first.endswith('.input') else ''}{layer} is the first to differ, and by no more than "
        "float32 rounds: a constant, a table or a cast in float32"
    )


def is_float32_rounding(error: float) -> bool:
    """Tell whether a relative error in float64 is that of values which one side has in float32."""
    return _FLOAT32[0] < error < _FLOAT32[1]


def _first_layer(a: Arrays, names: Sequence[str]) -> str | None:
    first = names[0] if names else ""
    if not first.startswith("step1/activation/"):
        return None
    layers = [name for name in a if name.startswith("step1/activation/")]
    index = layers.index(first)
    output, before = a[first], a[layers[index - 1]] if index else None
    layer = first.removeprefix("step1/activation/")
    halves = before is not None and output.ndim == before.ndim == 4 and output.shape[1] <= (before.shape[1] + 1) // 2
    if layer.endswith(".input"):  # of a user's own model
        between = f"what is computed between the layers before {layer.removesuffix('.input')} and it"
        pooling = "the padding of its pooling, or " if halves else ""
        return f"{between} is the first to differ: {pooling}a function, its arguments, or what is added or multiplied"
    if halves:
        return f"{layer} halves the image and is the first to differ: padding (SAME pads 3x3 stride 2 by 0 and 1)"
    return f"{layer} is the first layer to differ: its arithmetic, epsilon, padding or parameters"


def _after_the_layers(names: Sequence[str]) -> str | None:
    if names[:1] == ["step1/logits"]:
        return "logits are the first to differ: a function after the last layer, its arguments, or what is added there"
    if names[:1] == ["step1/loss"]:
        return (
            "the loss is the first to differ, of logits that agree: its form, label smoothing, or what it is a mean of"
        )
    return None


def _factor(a: Array, b: Array) -> float | None:
    """Return c where b = c * a to within rounding, None where no such number exists."""
    square = float(np.vdot(a, a))
    if not square:
        return None
    factor = float(np.vdot(a, b)) / square
    return factor if np.linalg.norm(b - factor * a) <= 1e-9 * np.linalg.norm(b) else None
