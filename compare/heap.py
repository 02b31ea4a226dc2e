"""This process's heap, as C's malloc keeps it, under the arrays of NumPy, torch and XLA on the host alike."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
_NEVER, _MOST = -1, 2**31 - 1


def keep_freed() -> None:
    """Keep what is freed from now on for this process's next arrays, as far as its C library can (glibc).

    By default it gives the memory of a large array back to the system, and gets the next array's page by page, zeroed:
    ten times what it takes to copy them from a GPU. What the process has taken at most, it holds until it ends.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MOST)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
