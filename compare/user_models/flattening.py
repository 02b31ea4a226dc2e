"""Find the order in which each side flattened the images for a dense layer, from the layer's inputs."""

import numpy as np

from compare.base.interface import Array

_LEAST_IMPROVEMENT = 0.9


def find_channels(torch_input: Array, jax_input: Array) -> int | None:
    """Return the channel count C if torch's input is [C, HW] and flax's the same values in [HW, C], else None.

    Both inputs are [N, F], from the same images and weights. Among all C that divide F, the one that brings torch's
    values nearest to flax's counts (Euclidean distance, the smallest C if several are equally near). So layers before
    may differ a little. The permutation must shorten the distance by at least a tenth, because chance also shortens the
    distance of unrelated values. Torch's [HW, C] against flax's [C, HW] is found as HW channels.

    Raises:
        ValueError: the shapes are not the same [N, F].
    """
    if torch_input.ndim != 2 or torch_input.shape != jax_input.shape:
        raise ValueError(f"inputs of shape {torch_input.shape} and {jax_input.shape}; allowed: the same [N, F]")
    features = torch_input.shape[1]
    least_distance = _LEAST_IMPROVEMENT * float(np.linalg.norm(torch_input - jax_input))
    channels: int | None = None
    for count in range(2, features // 2 + 1):
        if features % count:
            continue
        distance = float(np.linalg.norm(permute(torch_input, count) - jax_input))
        if distance < least_distance:
            least_distance, channels = distance, count
    return channels


def permute(rows: Array, channels: int) -> Array:
    """Turn [N, F] in [channels, HW] order into [N, F] in [HW, channels] order."""
    return rows.reshape(len(rows), channels, -1).swapaxes(1, 2).reshape(rows.shape)
