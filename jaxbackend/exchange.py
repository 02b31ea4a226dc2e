"""Exchanges between devices within a step: the moments of a synchronised batch norm.

`jaxbackend.only.joint_gradients` exchanges the gradients.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp

from jaxbackend import overlap

AXIS = "devices"
"""The name of the devices' axis in a program for several devices."""

_Local = Callable[[jax.Array], tuple[jax.Array, jax.Array]]
_FLOATS = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}  # in XLA's programs


def reduction_dtype(program: Any) -> str | None:
    """Return the narrowest dtype in which devices add up gradients, None where a compiled program adds up none.

    XLA does not always use the parameters' dtype.
    """
    reduced = re.findall(r" = (.*) (?:all-reduce|reduce-scatter)(?:-start)?\(", program.as_text())
    dtypes = {dtype for types in reduced for dtype in re.findall(r"\b(bf16|f16|f32|f64)\[", types)}
    return next((name for dtype, name in _FLOATS.items() if dtype in dtypes), None)


def moments(wide: jax.Array, local: _Local, *, synchronised: bool) -> tuple[jax.Array, jax.Array]:
    """Return mean and biased variance of the whole batch, from each device's `local` moments of equally many values.

    Unless `synchronised`, a device uses its local moments. One exchange serves both (Chan, Golub and LeVeque 1983,
    Algorithms for Computing the Sample Variance).
    """
    if not synchronised or jax.lax.axis_size(AXIS) == 1:  # on one device, XLA would still compute the exchange
        return local(wide)
    return cast("tuple[jax.Array, jax.Array]", _moments(overlap.hold(wide), local, AXIS))


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _moments(wide: jax.Array, local: _Local, over: str) -> tuple[jax.Array, jax.Array]:
    """Exchange two vectors once in the forward and once in the backward pass. The gradient is written out.

    A device needs only the sums of the moments' gradients from the others. Automatic differentiation would exchange
    more, and a compiled program would have one more kernel a layer.
    """
    means, variances = jnp.moveaxis(jax.lax.all_gather(jnp.stack(local(wide)), over), 1, 0)
    mean = means.mean(0)
    return mean, (variances + jnp.square(means - mean)).mean(0)


def _moments_forward(wide: jax.Array, local: _Local, over: str) -> tuple[Any, tuple[jax.Array, jax.Array]]:
    """Return mean [C] and biased variance [C] of all devices' values [N, ..., C], and the inputs of their gradient."""
    result: Any = _moments(wide, local, over)
    return result, (wide, result[0])


def _moments_backward(
    _: _Local, over: str, saved: tuple[jax.Array, jax.Array], gradients: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array]:
    """Return the gradient of this device's values from the gradients of mean and variance on every device."""
    (wide, mean), (of_mean, of_variance), devices = saved, gradients, jax.lax.axis_size(over)
    count = wide.size // wide.shape[-1] * devices
    sums = jnp.stack((of_mean / count, 2 * of_variance / count))
    # A sum over devices takes longer than a scattered sum of one copy for each device.
    offset, slope = jax.lax.psum_scatter(jnp.stack([sums] * devices), over)
    return (offset + slope * (wide - mean),)


_moments.defvjp(_moments_forward, _moments_backward)
