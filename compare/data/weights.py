"""Initial weights from NumPy by (seed, name): every backend, in every precision, starts from the same bits."""

import math
from collections.abc import Mapping

import numpy as np

# safetensors' annotations leave the path's type parameter open.
from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]

from compare.base import chunks
from compare.base.interface import Array, Arrays, Refused
from compare.data.datasets import digest as data_digest
from compare.data.seeding import make_generator

_CONSTANTS = {"bias": 0.0, "scale": 1.0, "gamma": 1e-6, "mean": 0.0, "var": 1.0}


def initialise(shapes: Mapping[str, tuple[int, ...]], seed: int) -> Arrays:
    """Return the initial value of every parameter and buffer, float64 arrays of the given shapes.

    The last part of the dotted name decides:

    - `kernel` [inputs, outputs] is uniform (Glorot and Bengio 2010).
    - `kernel` [height, width, inputs, outputs], or with one or three axes instead of height and width, is normal by
      fan-in and not truncated (He et al. 2015).
    - `scale` and `var` are 1, `bias` and `mean` are 0.
    - `gamma`, a layer scale, is 1e-6 (Liu et al. 2022).

    A kernel depends on the seed, its own name and its shape only. Every value is a float32 number, so float64 and
    float32 sessions start from the same bits.

    Raises:
        Refused: a name ends in none of these, or a kernel has another rank or an empty dimension.
    """
    return {name: _round(_initial(name, tuple(shape), seed)) for name, shape in shapes.items()}


def load(path: str) -> Arrays:
    """Return the arrays of a safetensors file of weights under neutral names, as float64."""
    arrays: dict[str, Array] = load_file(path)
    return {name: array.astype(np.float64) for name, array in arrays.items()}


def randomise(shapes: Mapping[str, tuple[int, ...]], seed: int) -> Arrays:
    """Return `initialise`, with biases, scales and statistics drawn at random: at 0 and 1 they hide errors.

    - `scale` and `gamma` are uniform in [0.5, 0.9] or [1.1, 1.5].
    - `var` is uniform in [0.5, 2].
    - `bias`, `mean`, and a user's `embedding` and `free` are normal. Their standard deviations are 0.1, 0.2 and 0.5.

    Every value is a float32 number.

    Raises:
        Refused: as `initialise`.
    """
    return {name: _round(_randomised(name, tuple(shape), seed)) for name, shape in shapes.items()}


def perturb(array: Array, roundoff: float, random: np.random.Generator) -> Array:
    """Return the array, every element moved by a relative `roundoff`, up or down at random."""
    factors, moved = np.array([1 - roundoff, 1 + roundoff]), np.empty(array.shape)
    signs = np.unpackbits(np.frombuffer(random.bytes(-(-array.size // 8)), np.uint8), count=array.size)
    for to, values, up in chunks.iterate_chunks(moved, array, signs):
        np.multiply(values, factors[up], out=to)
    return moved


def digest(arrays: Mapping[str, Array]) -> str:
    """Return the SHA-256, in hexadecimal, over names, dtypes, shapes and bytes, whatever the mapping's order."""
    parts: list[Array] = []
    for name in sorted(arrays):
        parts += [np.frombuffer(name.encode(), np.uint8), arrays[name]]
    return data_digest(*parts)


def _initial(name: str, shape: tuple[int, ...], seed: int) -> Array:
    kind = name.rpartition(".")[2]
    if kind in _CONSTANTS:
        return np.full(shape, _CONSTANTS[kind])
    if kind != "kernel":
        raise Refused(f"no initial value is known for {name!r}; its last part may be kernel, {', '.join(_CONSTANTS)}")
    if len(shape) not in (2, 3, 4, 5) or min(shape) < 1:
        raise Refused(
            f"kernel {name!r} has shape {shape}; allowed: [inputs, outputs] or [height, width, inputs, outputs], "
            "or with one or three axes instead of height and width"
        )
    random = make_generator("weights", seed, name)
    if len(shape) == 2:
        limit = math.sqrt(6 / sum(shape))
        return random.uniform(-limit, limit, shape)
    return random.normal(0, math.sqrt(2 / math.prod(shape[:-1])), shape)


def _randomised(name: str, shape: tuple[int, ...], seed: int) -> Array:
    random = make_generator("randomised", seed, name)
    match name.rpartition(".")[2]:
        case "bias":
            return random.normal(0, 0.1, shape)
        case "mean":
            return random.normal(0, 0.2, shape)
        case "scale" | "gamma":
            return 1 + random.choice([-1, 1], shape) * random.uniform(0.1, 0.5, shape)
        case "var":
            return random.uniform(0.5, 2, shape)
        case "embedding" | "free":
            return random.normal(0, 0.5, shape)
        case _:
            return _initial(name, shape, seed)


def _round(values: Array) -> Array:
    return values.astype(np.float32).astype(np.float64)
