"""In which order each side flattens the images that a dense layer gets, told from what the layer got."""

import numpy as np

from compare.base.interface import Array

_NEARER = 0.9


def channels(torch_input: Array, jax_input: Array) -> int | None:
    """Return the number of channels C where torch's input is [C, HW] and flax's the same values in [HW, C].

    Both are [N, F], of the same images and weights; None where they are in the same order. Asked is which of all C that
    divide F brings torch's values nearest to flax's (Euclidean distance), so that layers before may differ a little. A
    permutation must be nearer than none by a tenth at least, else unrelated values would be permuted by chance; of
    equally near ones the smallest C is taken. Torch's [HW, C] against flax's [C, HW] is found too, as HW channels.

    Raises:
        ValueError: the shapes are not one [N, F].
    """
    if torch_input.ndim != 2 or torch_input.shape != jax_input.shape:
        raise ValueError(f"inputs of shape {torch_input.shape} and {jax_input.shape}; allowed: the same [N, F]")
    features = torch_input.shape[1]
    nearest, found = _NEARER * float(np.linalg.norm(torch_input - jax_input)), None
    for count in range(2, features // 2 + 1):
        if features % count:
            continue
        distance = float(np.linalg.norm(permuted(torch_input, count) - jax_input))
        if distance < nearest:
            nearest, found = distance, count
    return found


def permuted(rows: Array, count: int) -> Array:
    """Return [N, F] in [C, HW] order, C being `count`, as [N, F] in [HW, C] order."""
    return rows.reshape(len(rows), count, -1).swapaxes(1, 2).reshape(rows.shape)
