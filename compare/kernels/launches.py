"""How the kernels are launched: shapes, block sizes to choose from, grids and outputs. This file imports no Triton."""

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Mask = Literal["none", "plain", "affine"]
"""The ReLU before a product's input: none, max(x, 0), or max(scale x + bias, 0)."""


@dataclasses.dataclass(frozen=True)
class Product:
    """A 1x1 convolution: `rows` output pixels of the batch, and input and output channels.

    With a `stride` over 1, images are square with `side` pixels a side.
    """

    rows: int
    inner: int
    outer: int
    side: int = 1
    stride: int = 1


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How a kernel divides its work: tile sides, warps of a program, tiles in flight, and programs a multiprocessor.

    `in_threads` tells that each thread adds up its own rows until the end.
    """

    rows: int
    inner: int
    outer: int
    warps: int = 4
    stages: int = 3
    per_processor: int = 1
    in_threads: bool = True


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


MULTIPLY = (
    Blocks(64, 64, 64, 4, 4, 3),
    Blocks(128, 64, 64, 4, 4, 2),
    Blocks(64, 64, 128, 4, 4, 2),
    Blocks(64, 128, 64, 4, 3, 3),
    Blocks(64, 128, 128, 4, 3, 2),
    Blocks(64, 256, 64, 4, 2, 2),
    Blocks(128, 64, 128, 8, 4),
    Blocks(128, 128, 128, 8, 3),
    Blocks(128, 256, 128, 8, 2),
)
DATA_GRADIENT = (
    Blocks(64, 64, 64, 4, 3, 3),
    Blocks(64, 64, 64, 4, 4, 2),
    Blocks(128, 64, 64, 8, 3),
    Blocks(64, 64, 128, 4, 2, 2),
    Blocks(64, 128, 64, 4, 3, 2),
    Blocks(64, 128, 128, 4, 2, 2),
    Blocks(128, 128, 64, 8, 3),
)
WEIGHT_GRADIENT = (
    Blocks(64, 64, 128, 4, 3, 2),
    Blocks(64, 64, 256, 8, 3),
    Blocks(64, 128, 64, 4, 3, 2),
    Blocks(64, 128, 128, 8, 3),
    Blocks(64, 256, 64, 8, 3),
)
BOTH_GRADIENTS = (
    Blocks(64, 0, 0, 8, 2, in_threads=False),
    Blocks(64, 0, 0, 8, 2),
    Blocks(64, 0, 0, 4, 2, 2),
)
BOTH_LARGEST = 64 * 256  # the weight's gradient stays in a program's registers


def multiply(
    product: Product,
    blocks: Blocks,
    *,
    processors: int,
    apply: bool,
    weight_strides: tuple[int, int],
    precision: str = "ieee",
) -> Launch:
    """Return the launch of `multiply`, with `processors` multiprocessors."""
    columns = -(-product.outer // blocks.outer)
    walkers = _count_walkers(product.rows, blocks, columns, processors)
    constants = {
        "ROWS": product.rows,
        "INNER": product.inner,
        "OUTER": product.outer,
        "WEIGHT_INNER": weight_strides[0],
        "WEIGHT_OUTER": weight_strides[1],
        "SIDE": product.side,
        "STRIDE": product.stride,
        "APPLY": apply,
        "PRECISION": precision,
        "PROGRAMS": walkers * columns,
        "BLOCK_ROWS": blocks.rows,
        "BLOCK_INNER": blocks.inner,
        "BLOCK_OUTER": blocks.outer,
        "GROUP": _group(blocks),
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
    normalised: bool = True,
    gated: bool,
    mask: Mask,
    add: bool,
    precision: str = "ieee",
) -> Launch:
    """Return the launch of `data_gradient`. Its input has the shape of the product's output."""
    columns = -(-product.inner // blocks.inner)
    walkers = _count_walkers(product.rows, blocks, columns, processors)
    constants = {
        **_gradient_constants(product, weight_strides, normalised, gated, mask, add, precision),
        "PROGRAMS": walkers * columns,
        "BLOCK_ROWS": blocks.rows,
        "BLOCK_OUTER": blocks.outer,
        "BLOCK_INNER": blocks.inner,
        "GROUP": _loaded_group(blocks, blocks.inner),
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
    apply: bool,
    normalised: bool = True,
    gated: bool,
    precision: str = "ieee",
) -> Launch:
    """Return the launch of `weight_gradient`."""
    tiles = -(-product.inner // blocks.inner) * -(-product.outer // blocks.outer)
    splits = max(1, min(blocks.per_processor * processors // tiles, -(-product.rows // blocks.rows)))
    constants = {
        "ROWS": product.rows,
        "INNER": product.inner,
        "OUTER": product.outer,
        "SIDE": product.side,
        "STRIDE": product.stride,
        "NORMALISED": normalised,
        "GATED": gated,
        "APPLY": apply,
        "PRECISION": precision,
        "SPLITS": splits,
        "BLOCK_ROWS": blocks.rows,
        "BLOCK_INNER": blocks.inner,
        "BLOCK_OUTER": blocks.outer,
        "STAGES": blocks.stages,
    }
    outputs = {"parts": (splits, product.inner, product.outer)}
    return Launch("weight_gradient", splits * tiles, blocks.warps, constants, outputs)


def both_gradients(
    product: Product,
    blocks: Blocks,
    *,
    processors: int,
    weight_strides: tuple[int, int],
    normalised: bool = True,
    gated: bool,
    mask: Mask,
    add: bool,
    precision: str = "ieee",
) -> Launch:
    """Return the launch of `both_gradients`, for products of at most BOTH_LARGEST weights."""
    walkers = _count_walkers(product.rows, blocks, 1, processors)
    constants = {
        **_gradient_constants(product, weight_strides, normalised, gated, mask, add, precision),
        "PROGRAMS": walkers,
        "BLOCK_ROWS": blocks.rows,
        "GROUP": _loaded_group(blocks, product.inner),
        "STAGES": blocks.stages,
    }
    sums = (walkers, product.inner)
    outputs = {
        "result": (product.rows, product.inner),
        "sums": sums,
        "products": sums,
        "parts": (walkers, product.inner, product.outer),
    }
    return Launch("both_gradients", walkers, blocks.warps, constants, outputs, ("result",))


def _gradient_constants(
    product: Product,
    weight_strides: tuple[int, int],
    normalised: bool,
    gated: bool,
    mask: Mask,
    add: bool,
    precision: str,
) -> dict[str, Any]:
    return {
        "ROWS": product.rows,
        "INNER": product.inner,
        "OUTER": product.outer,
        "WEIGHT_INNER": weight_strides[0],
        "WEIGHT_OUTER": weight_strides[1],
        "NORMALISED": normalised,
        "GATED": gated,
        "MASK": mask,
        "ADD": add,
        "PRECISION": precision,
    }


def _count_walkers(rows: int, blocks: Blocks, columns: int, processors: int) -> int:
    """Return how many programs share the row blocks of one column block. Each has at least one."""
    return max(1, min(blocks.per_processor * processors // columns, -(-rows // blocks.rows)))


def _group(blocks: Blocks) -> int:
    """Return how many row sums of a product's tile stay apart: 8 for each warp that has other rows."""
    return min(8 * blocks.warps, blocks.rows // 2) if blocks.in_threads else 0


def _loaded_group(blocks: Blocks, width: int) -> int:
    """Return how many rows of a loaded tile all threads hold at once, with 8 values each."""
    return max(1, min(32 * blocks.warps * 8 // width, blocks.rows)) if blocks.in_threads else 0


def read_blocks(numbers: Sequence[int]) -> Blocks:
    """Return the blocks that have these fields. Operators of a framework take lists of numbers."""
    *sizes, in_threads = numbers
    return Blocks(*sizes, in_threads=bool(in_threads))


def check_mask(kind: str) -> Mask:
    """Return a mask's name as one."""
    for mask in ("none", "plain", "affine"):
        if kind == mask:
            return mask
    raise ValueError(f"no mask {kind!r}")


def rows_of_walkers(launch: Launch) -> list[int]:
    """Return how many rows each walker of a `multiply` has."""
    rows, block = launch.constants["ROWS"], launch.constants["BLOCK_ROWS"]
    walkers = launch.outputs["means"][0]
    blocks = -(-rows // block)
    return [
        sum(min(block, rows - number * block) for number in range(walker, blocks, walkers)) for walker in range(walkers)
    ]
