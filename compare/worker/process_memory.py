"""Limit this process's own memory, and keep freed memory for its next arrays."""

import ctypes
import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_STATUS = Path("/proc/self/status")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
_NEVER, _LARGEST = -1, 2**31 - 1


def limit(limit_bytes: int) -> None:
    """Let this process take at most `limit_bytes` more than it holds now, by RLIMIT_DATA. Linux only.

    On a CPU no framework's allocator has a limit of its own. Linux counts all private writable mappings as data: the
    heap, tensors, the compiler's memory, stacks and the mapped dataset. It does not count code, shared memory and
    read-only files (getrlimit(2), since Linux 4.7). A process that this process starts has the same limit for its own
    data. An allocation beyond the limit fails, and the framework raises an error or aborts.

    Raises:
        OSError: /proc does not say how much the process holds.
    """
    most = read_held_bytes() + limit_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def read_held_bytes() -> int:
    """Return the bytes of this process that count towards the limit."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) * 1024


@contextmanager
def reuse_memory() -> Generator[None]:
    """Keep freed memory for this process's next arrays, and return it to the system after the `with` block.

    By default malloc returns the memory of a large array at once. The next array then gets zeroed pages one by one,
    which takes ten times as long as a copy from a GPU. Only glibc can keep it. With another library this does nothing.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        yield
        return
    library.mallopt(_M_MMAP_THRESHOLD, _LARGEST)
    library.mallopt(_M_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        library.malloc_trim(0)
