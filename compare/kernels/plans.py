"""Which kernel computes which product: only where it was measured to win, per shape and device."""

import contextlib
import dataclasses
from collections.abc import Generator, Mapping

from compare.kernels.launches import Blocks, Mask, Product

_chosen: dict[tuple[str, int, int, int, str], list[int]] = {}
_uses_tf32: list[bool] = [False]


def find(kernel: str, rows: int, inner: int, outer: int, kind: str) -> list[int] | None:
    """Return the block sizes of a kernel, as `Blocks` takes them. None if the library is faster, or never measured.

    Compilers trace this function. So it takes and returns plain numbers only.
    """
    return _chosen.get((kernel, rows, inner, outer, kind))


def uses_tf32() -> bool:
    """Tell whether kernels round float32 factors to TF32."""
    return _uses_tf32[0]


@contextlib.contextmanager
def using(chosen: Mapping[tuple[str, Product, Mask], Blocks], *, tf32: bool = False) -> Generator[None]:
    """Use these kernels while the context lasts, by kernel, product and mask of its input."""
    before = dict(_chosen), _uses_tf32[0]
    use(chosen, tf32=tf32)
    try:
        yield
    finally:
        _chosen.clear()
        _chosen.update(before[0])
        _uses_tf32[0] = before[1]


def use(chosen: Mapping[tuple[str, Product, Mask], Blocks], *, tf32: bool = False) -> None:
    """Use these kernels from now on, and no others."""
    _uses_tf32[0] = tf32
    _chosen.clear()
    for (kernel, product, kind), blocks in chosen.items():
        numbers = [int(value) for value in dataclasses.astuple(blocks)]
        _chosen[kernel, product.rows, product.inner, product.outer, kind] = numbers
