"""Batch norm folded into the convolutions before it: the knob `fold-batch-norm`."""

from typing import Any

import numpy as np
from flax import nnx

from compare.base.interface import Array
from compare.base.names import join_path
from jaxbackend import layers


def mark_pairs(model: nnx.Module) -> dict[str, str]:
    """Make every batch norm behind a convolution add its shift only, and return its path by its convolution's path.

    In a twin both are the parts `conv` and `norm` of one module.
    """
    pairs = dict[str, str]()
    for path, module in nnx.iter_modules(model):
        conv, norm = getattr(module, "conv", None), getattr(module, "norm", None)
        if isinstance(conv, layers.Conv) and isinstance(norm, layers.BatchNorm):
            norm.is_folded = True
            pairs[join_path((*path, "conv"))] = join_path((*path, "norm"))
    return pairs


def fold(arrays: dict[str, Any], pairs: dict[str, str], epsilon: float = 1e-5) -> dict[str, Any]:
    """Return a twin's variables by name, with the kernels that they have together with batch norm.

    The batch norm's bias becomes the shift that is left. All is computed in float64.
    """
    folded = dict(arrays)
    for conv, norm in pairs.items():
        scale, bias, mean, var = (_wide(arrays[f"{norm}.{name}"]) for name in ("scale", "bias", "mean", "var"))
        factor = scale / np.sqrt(var + epsilon)
        own_bias = _wide(arrays[f"{conv}.bias"]) if f"{conv}.bias" in arrays else 0.0
        folded[f"{conv}.kernel"] = _wide(arrays[f"{conv}.kernel"]) * factor
        folded[f"{norm}.bias"] = (own_bias - mean) * factor + bias
        if f"{conv}.bias" in arrays:
            folded[f"{conv}.bias"] = np.zeros_like(own_bias)
    return folded


def _wide(array: Any) -> Array:
    return np.asarray(array, np.float64)
