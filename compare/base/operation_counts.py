"""Count the floating-point operations of convolutions and products from the shapes of a traced step.

A product of two numbers that is added to a sum counts as two operations. Products with zeros that only fill up an
image, a stride or a channel do not count. So a convolution and its two gradients have equal counts, in any framework.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

FORWARD, DATA_GRADIENT, WEIGHT_GRADIENT = DIRECTIONS = ("forward", "data-gradient", "weight-gradient")
"""The passes of a layer: its output, the gradient of its input, and the gradients of its parameters."""

CONVOLUTION, PRODUCT = "convolution", "matrix-product"


@dataclass(frozen=True)
class Operation:
    """One convolution or product of a training step.

    Attributes:
        layer: the neutral name of its layer, or "" if it is unknown.
        kind: `CONVOLUTION` or `PRODUCT`.
        direction: one of `DIRECTIONS`.
        flops: its floating-point operations.
    """

    layer: str
    kind: str
    direction: str
    flops: int


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a convolution, as XLA describes it.

    `before` pixels of padding come first. `input_dilation` minus 1 zeros lie between pixels, and `kernel_dilation`
    minus 1 between the kernel's values.
    """

    size: int
    output: int
    kernel: int
    stride: int = 1
    before: int = 0
    input_dilation: int = 1
    kernel_dilation: int = 1

    def count_products(self) -> int:
        """Return the number of pairs of an output and a kernel's value that meet a pixel of the image."""
        last = (self.size - 1) * self.input_dilation
        places = (
            output * self.stride + tap * self.kernel_dilation - self.before
            for output in range(self.output)
            for tap in range(self.kernel)
        )
        return sum(0 <= place <= last and place % self.input_dilation == 0 for place in places)


def count_convolution(images: int, inputs_of_group: int, outputs: int, axes: Sequence[Axis]) -> int:
    """Return the operations of a convolution. `inputs_of_group` channels meet each of `outputs` channels."""
    return 2 * images * inputs_of_group * outputs * math.prod(axis.count_products() for axis in axes)


def count_product(rows: int, inner: int, columns: int, batch: int = 1) -> int:
    """Return the operations of `batch` matrix products [rows, inner] x [inner, columns]."""
    return 2 * batch * rows * inner * columns
