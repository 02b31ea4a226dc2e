"""This process's heap, as C's malloc keeps it, under the arrays of NumPy, torch and XLA on the host alike."""

import ctypes
from collections.abc import Generator
from contextlib import contextmanager

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
_NEVER, _MOST = -1, 2**31 - 1


@contextmanager
def kept() -> Generator[None]:
    """Keep what is freed for this process's next arrays, and give it back after the `with` block (glibc; else nothing).

    By default malloc gives the memory of a large array back to the system at once, and gets the next array's page by
    page, zeroed: ten times what it takes to copy them from a GPU.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        yield
        return
    library.mallopt(_M_MMAP_THRESHOLD, _MOST)
    library.mallopt(_M_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        library.malloc_trim(0)
