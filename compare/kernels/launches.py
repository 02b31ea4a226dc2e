"""How the kernels are launched: shapes, grids and outputs. This file imports no Triton."""

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Mask = Literal["none", "plain", "affine"]
"""The ReLU before a product's input: none, max(x, 0), or max(scale x + bias, 0)."""


@dataclasses.dataclass(frozen=True)
class Product:
    """A 1x1 convolution: `rows` pixels of the batch, and input and output channels."""

    rows: int
    inner: int
    outer: int


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How a kernel divides its work: tile sides, warps of a program, tiles in flight, and programs a multiprocessor."""

    rows: int
    inner: int
    outer: int
    warps: int = 4
    stages: int = 3
    per_processor: int = 1


@dataclasses.dataclass(frozen=True)
class Launch:
    """A kernel's name, its number of programs, constants and the shapes of its outputs, in their order.

    An output is in the input's dtype if it is in `narrow`, and else in float32.
    """

    kernel: str
    programs: int
    warps: int
    constants: Mapping[str, Any]
    outputs: Mapping[str, tuple[int, ...]]
    narrow: Sequence[str] = ()

    def function(self) -> Any:
        """Import and return the kernel."""
        return getattr(importlib.import_module("compare.kernels.products"), self.kernel)


def multiply(
    product: Product,
    blocks: Blocks,
    *,
    processors: int,
    apply: bool,
    weight_strides: tuple[int, int],
    precision: str = "ieee",
) -> Launch:
    """Return the launch of `multiply`.

    Args:
        product: the shape of the convolution.
        blocks: how the kernel divides its work.
        processors: the device's number of multiprocessors.
        apply: whether max(scale x + bias, 0) comes before the product.
        weight_strides: the distances of input and of output channels in the weight, in values.
        precision: how a product rounds its factors, `tf32` or `ieee`.
    """
    columns = -(-product.outer // blocks.outer)
    walkers = _count_walkers(product.rows, blocks, columns, processors)
    constants = {
        "ROWS": product.rows,
        "INNER": product.inner,
        "OUTER": product.outer,
        "WEIGHT_INNER": weight_strides[0],
        "WEIGHT_OUTER": weight_strides[1],
        "APPLY": apply,
        "PRECISION": precision,
        "PROGRAMS": walkers * columns,
        "BLOCK_ROWS": blocks.rows,
        "BLOCK_INNER": blocks.inner,
        "BLOCK_OUTER": blocks.outer,
        "GROUP": min(8 * blocks.warps, blocks.rows // 2),  # row sums that stay apart: 8 for each warp
        "STAGES": blocks.stages,
    }
    moments = (walkers, product.outer)
    outputs = {"y": (product.rows, product.outer), "means": moments, "squares": moments}
    return Launch("multiply", walkers * columns, blocks.warps, constants, outputs, ("y",))


def data_gradient(
    product: Product,
    blocks: Blocks,
    *,
    processors: int,
    weight_strides: tuple[int, int],
    precision: str = "ieee",
) -> Launch:
    """Return the launch of `data_gradient`, with arguments as in `multiply`. It reads arrays [rows, outer]."""
    columns = -(-product.inner // blocks.inner)
    walkers = _count_walkers(product.rows, blocks, columns, processors)
    constants = {
        "ROWS": product.rows,
        "INNER": product.inner,
        "OUTER": product.outer,
        "WEIGHT_INNER": weight_strides[0],
        "WEIGHT_OUTER": weight_strides[1],
        "PRECISION": precision,
        "PROGRAMS": walkers * columns,
        "BLOCK_ROWS": blocks.rows,
        "BLOCK_OUTER": blocks.outer,
        "BLOCK_INNER": blocks.inner,
        "GROUP": max(1, min(32 * blocks.warps * 8 // blocks.inner, blocks.rows)),  # rows that all threads hold at once
        "STAGES": blocks.stages,
    }
    sums = (walkers, product.inner)
    outputs = {"result": (product.rows, product.inner), "sums": sums, "products": sums}
    return Launch("data_gradient", walkers * columns, blocks.warps, constants, outputs, ("result",))


def weight_gradient(
    product: Product,
    blocks: Blocks,
    *,
    processors: int,
    precision: str = "ieee",
) -> Launch:
    """Return the launch of `weight_gradient`, with arguments as in `multiply`."""
    tiles = -(-product.inner // blocks.inner) * -(-product.outer // blocks.outer)
    splits = max(1, min(blocks.per_processor * processors // tiles, -(-product.rows // blocks.rows)))
    constants = {
        "ROWS": product.rows,
        "INNER": product.inner,
        "OUTER": product.outer,
        "PRECISION": precision,
        "SPLITS": splits,
        "BLOCK_ROWS": blocks.rows,
        "BLOCK_INNER": blocks.inner,
        "BLOCK_OUTER": blocks.outer,
        "STAGES": blocks.stages,
    }
    outputs = {"parts": (splits, product.inner, product.outer)}
    return Launch("weight_gradient", splits * tiles, blocks.warps, constants, outputs)


def _count_walkers(rows: int, blocks: Blocks, columns: int, processors: int) -> int:
    """Return how many programs share the row blocks of one column block. Each has at least one."""
    return max(1, min(blocks.per_processor * processors // columns, -(-rows // blocks.rows)))


def rows_of_walkers(launch: Launch) -> list[int]:
    """Return how many rows each walker of a `multiply` has."""
    rows, block = launch.constants["ROWS"], launch.constants["BLOCK_ROWS"]
    walkers = launch.outputs["means"][0]
    blocks = -(-rows // block)
    return [
        sum(min(block, rows - number * block) for number in range(walker, blocks, walkers)) for walker in range(walkers)
    ]
