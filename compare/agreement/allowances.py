"""Real differences between two models that leave training the same. A user may accept them by name (`--allow`)."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from compare.base.interface import Array, Arrays
from compare.base.trace import Layer

_OUTPUT = "step1/activation/"

RUNNING_VARIANCE = "running-variance"

ALLOWED: Mapping[str, str] = {
    RUNNING_VARIANCE: (
        "batch norm keeps the biased running variance on one side (flax), n/(n-1) times as much on the other (torch): "
        "training is the same, evaluation after it is not"
    ),
}
"""Name to the difference, in one line. samestep accepts none that the user does not name."""


def read_momenta(layers: Iterable[tuple[Layer, Layer]]) -> dict[str, dict[str, float]]:
    """Return by side (`torch`, `jax`) the layers that keep the unbiased variance where the other keeps the biased one.

    `layers` are pairs of matched layers (torch, flax). The result names them by torch's paths, and gives the momentum
    (the weight of the new batch). Two kinds are left out. A cumulative average has no momentum and is not accepted. A
    frozen layer normalises by its running statistics and never changes them.
    """
    found: dict[str, dict[str, float]] = {"torch": {}, "jax": {}}
    for pair in layers:
        frozen = all(each.settings.get("statistics") == "running" for each in pair)
        kinds = [None if frozen else each.settings.get("running_variance") for each in pair]
        for side, layer, kind, other in zip(found, pair, kinds, kinds[::-1], strict=True):
            momentum = layer.settings.get("momentum")
            if (kind, other) == ("unbiased", "biased") and momentum is not None:
                found[side][pair[0].path] = float(momentum)
    return found


def convert_to_biased_variance(
    record: Arrays, momenta: Mapping[str, float], *, accumulate: int = 1, devices: int = 1
) -> Arrays:
    """Return a side's record as it would be if the layers of `momenta` kept the biased running variance.

    With momentum c, the state after t updates is (1-c)^t start + c sum_i (1-c)^(t-i) variance_i. An unbiased variance
    is n/(n-1) times the biased one, where n is the number of elements of a channel in a batch. So the state minus
    (1-c)^t start, divided by n/(n-1), is the sum of the other side. The decayed start is then added again. Gates
    compare the change from the start, as for any buffer, and a wrong momentum or factor still shows.

    This changes `step{s}/buffer/LAYER.var` and `delta/LAYER.var`, in the record's own dtype. n is counted from
    `step{s}/activation/LAYER`. A layer stays unchanged if its calls differ in n, or if n is 1.

    Args:
        record: arrays of one side, as `compare.worker.recording` makes them.
        momenta: by layer, as of `read_momenta`.
        accumulate: micro-batches of a step: each updates the state once, with n of its own.
        devices: devices that each update a state of their own, with n of their part of the batch.
    """
    steps = 0
    while f"step{steps + 1}/loss" in record:
        steps += 1
    changed, calls = dict(record), _calls(record)
    for layer, momentum in momenta.items():
        name = f"{layer}.var" if layer else "var"
        start = record[f"initial/{name}"].astype(np.float64)
        counted = [_count(calls[step, layer], accumulate, devices) for step in range(1, steps + 1)]
        if not counted or len(set(counted)) > 1 or counted[0] is None:
            continue
        updates, size = counted[0]
        kept = (1 - momentum) ** updates

        def biased(state: Array, step: int, kept: float = kept, size: int = size, start: Array = start) -> Array:
            decayed = kept**step * start
            return decayed + (state - decayed) * ((size - 1) / size)

        for step in range(1, steps + 1):
            key = f"step{step}/buffer/{name}"
            changed[key] = biased(record[key], step).astype(record[key].dtype)
        key = f"delta/{name}"
        if key in record:
            changed[key] = (biased(start + record[key], steps) - start).astype(record[key].dtype)
    return changed


def _calls(record: Arrays) -> Mapping[tuple[int, str], list[Array]]:
    """Return by step and layer what each call of the layer returned."""
    found: dict[tuple[int, str], list[Array]] = defaultdict(list)
    for name, array in record.items():
        stage, _, rest = name.partition("/")
        kind, _, call = rest.partition("/")
        if kind == "activation":
            found[int(stage.removeprefix("step")), call.partition("#")[0]].append(array)
    return found


def _count(calls: Sequence[Array], accumulate: int, devices: int) -> tuple[int, int] | None:
    """Return the updates of a step and each one's elements a channel, None where these differ or are less than 2."""
    sizes = {array.size // array.shape[-1] // (accumulate * devices) for array in calls}
    return (len(calls) * accumulate, *sizes) if len(sizes) == 1 and min(sizes) > 1 else None


def bring_into_rows(record: Arrays, layers: Collection[str]) -> Arrays:
    """Return a record in which what `layers` take and return has the shape of `find_rows`."""
    return {
        name: array.reshape(find_rows(array.shape)) if _activation_layer(name) in layers else array
        for name, array in record.items()
    }


def find_rows(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape [rows, features] of an activation that a layer may take in several shapes.

    A dense layer may get [N, C] where the 1x1 convolution that does the same gets [N, 1, 1, C]. A batch norm may get
    [N, L, C] or [N * L, C].
    """
    features = next((size for size in reversed(shape[1:]) if size != 1), 1)
    return (math.prod(shape) // features, features)


def _activation_layer(name: str) -> str | None:
    """Return the layer that an activation is of, or the input of, None for other tensors."""
    _, is_activation, call = name.partition("/activation/")
    return call.removesuffix(".input").partition("#")[0] if is_activation else None


def drop_folded(
    baseline: Mapping[str, Arrays], contender: Mapping[str, Arrays]
) -> tuple[dict[str, Arrays], dict[str, Arrays]]:
    """Return both sides' records of requests without outputs that one side does not have, because it folds batch norm.

    Only outputs of layers with a kernel are dropped. Any other output that a side lacks is a mismatch.
    """
    names = [set(side["float64"]) for side in (baseline, contender)]
    dropped = {
        name
        for name in names[0] ^ names[1]
        if name.startswith(_OUTPUT) and f"initial/{name.removeprefix(_OUTPUT)}.kernel" in baseline["float64"]
    }

    def drop(side: Mapping[str, Arrays]) -> dict[str, Arrays]:
        return {
            precision: {name: array for name, array in record.items() if name not in dropped}
            for precision, record in side.items()
        }

    return drop(baseline), drop(contender)
