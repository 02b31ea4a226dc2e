"""Large arrays chunk by chunk, so that what is computed from them stays in a core's cache.

Whole arrays as intermediate results cost more than the arithmetic: memory for them is found, cleared and read again.
"""

from collections.abc import Iterator

from compare.base.interface import Array

SIZE = 2**17
"""Elements of a chunk: 1 MiB in float64. Threads that compute smaller ones wait for each other: Python takes turns."""


def iterate_chunks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield the elements of equally large arrays, `SIZE` at a time and flat, in one order for all arrays.

    It is the order of their memory, if that is the same for all.
    """
    is_alike = len({(array.shape, array.strides) for array in arrays}) == 1
    flat = [array.ravel(order="K") if is_alike else array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, SIZE):
        yield tuple(array[start : start + SIZE] for array in flat)
