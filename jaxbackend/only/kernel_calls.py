"""Calls of the kernels in `compare.kernels` by jax-triton. XLA calls them as they are.

Matrices are [rows, channels]. `blocks` are the fields of `launches.Blocks`.
"""

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from compare.base.interface import Refused
from compare.kernels import launches
from compare.kernels.launches import Blocks, Launch, Mask, Product


def multiply(
    x: jax.Array,
    weight: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    shift: jax.Array,
    kind: Mask,
    tf32: bool,
    blocks: Sequence[int],
) -> list[jax.Array]:
    """Return y = f(x) w, and each program's means and sums of squared deviations."""
    launch = launches.multiply(
        _shape(x, weight),
        Blocks(*blocks),
        processors=_processors(),
        apply=kind == "affine",
        weight_strides=(weight.shape[1], 1),
        precision=_precision(tf32),
    )
    return call(launch, (x, weight, scale, bias, shift))


def data_gradient(
    gradient: jax.Array,
    y: jax.Array,
    factors: jax.Array,
    weight: jax.Array,
    x: jax.Array,
    center: jax.Array,
    skip: jax.Array,
    source: jax.Array,
    tf32: bool,
    blocks: Sequence[int],
) -> list[jax.Array]:
    """Return the masked gradient of the input, and each program's sums of it and of its products with the source."""
    launch = launches.data_gradient(
        _shape(x, weight),
        Blocks(*blocks),
        processors=_processors(),
        weight_strides=(weight.shape[1], 1),
        precision=_precision(tf32),
    )
    return call(launch, (gradient, y, factors, weight, x, center, skip, source))


def weight_gradient(
    gradient: jax.Array, y: jax.Array, factors: jax.Array, x: jax.Array, tf32: bool, blocks: Sequence[int]
) -> jax.Array:
    """Return parts [splits, inputs, outputs] of the weight's gradient."""
    product = Product(x.shape[0], x.shape[1], y.shape[1])
    launch = launches.weight_gradient(product, Blocks(*blocks), processors=_processors(), precision=_precision(tf32))
    return call(launch, (gradient, y, factors, x))[0]


def call(launch: Launch, inputs: Sequence[jax.Array]) -> list[jax.Array]:
    """Return what a kernel writes."""
    outputs = [
        jax.ShapeDtypeStruct(shape, inputs[0].dtype if name in launch.narrow else jnp.float32)
        for name, shape in launch.outputs.items()
    ]
    return list(
        load().triton_call(
            *inputs,
            kernel=launch.function(),
            out_shape=outputs,
            grid=(launch.programs,),
            num_warps=launch.warps,
            **launch.constants,
        )
    )


@functools.cache
def load() -> Any:
    """Return the package jax-triton.

    Raises:
        Refused: it is not installed.
    """
    try:
        return importlib.import_module("jax_triton")
    except ImportError as error:
        raise Refused(
            f"fused-batch-norm needs the packages jax-triton and triton in jax ({error}); allowed: with "
            "pip install 'samestep[kernels]', or without fused-batch-norm"
        ) from None


def _shape(x: jax.Array, weight: jax.Array) -> Product:
    return Product(x.shape[0], *weight.shape)


def _precision(tf32: bool) -> str:
    return "tf32" if tf32 else "ieee"


@functools.cache
def _processors() -> int:
    """Return the device's number of multiprocessors. Triton's interpreter, on a CPU, has as many as it likes."""
    return getattr(jax.local_devices()[0], "core_count", 4)
