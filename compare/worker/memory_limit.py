"""A limit on this process's own memory, for a CPU, where no framework's allocator has one. Linux only."""

import resource
from pathlib import Path

_STATUS = Path("/proc/self/status")


def hold(limit_bytes: int) -> None:
    """Let this process take at most `limit_bytes` more than it holds now, by RLIMIT_DATA.

    Counted is what Linux counts as data (VmData): all private writable mappings, touched or not, so heap, tensors, a
    compiler's working memory, the stacks of threads and the mapped dataset, but no code, shared memory or file that is
    mapped read-only (getrlimit(2), since Linux 4.7). Processes that this one starts get the same limit, each for its
    own data. An allocation beyond the limit fails; a framework then raises an error or aborts.

    Raises:
        OSError: where /proc does not tell how much the process holds.
    """
    limit = held() + limit_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def held() -> int:
    """Return the bytes of this process that count."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) * 1024
