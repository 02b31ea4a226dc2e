"""Bring activations of a user's model into the neutral order and back."""

import jax
import numpy as np

from compare.base.trace import Layout


def bring_to_neutral(array: jax.Array, layout: Layout) -> jax.Array:
    """Return an activation in neutral order, as its layout tells. A layout of another size does not apply."""
    if len(layout.axes) == array.ndim and layout.axes != tuple(range(array.ndim)):
        array = array.transpose(layout.axes)
    return array.take(np.asarray(layout.features), axis=-1) if len(layout.features) == array.shape[-1] else array


def bring_from_neutral(array: jax.Array, layout: Layout) -> jax.Array:
    """Undo `bring_to_neutral`."""
    if len(layout.features) == array.shape[-1]:
        array = array.take(np.argsort(layout.features), axis=-1)
    return array.transpose(np.argsort(layout.axes)) if len(layout.axes) == array.ndim else array
