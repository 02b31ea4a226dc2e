"""Programs that XLA compiles appear in JAX's cache when they are whole. One that cannot be loaded is made again."""

import os
import sys
from contextlib import suppress
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

from jax._src import compilation_cache
from jax._src.lru_cache import LRUCache

_SUFFIX = "-cache"


def publish() -> None:
    """Let JAX write each program of its cache whole or not at all, and delete one that it cannot load."""
    if not isinstance(compilation_cache.get_executable_and_time, partial):
        cache: Any = LRUCache
        cache.put = partialmethod(put_whole, cache.put)
        load = compilation_cache.get_executable_and_time
        compilation_cache.get_executable_and_time = partial(load_or_delete, load)


def put_whole(cache: Any, put: Any, key: str, value: bytes) -> None:
    """Write a program to a file without a name, and then name it. A killed process leaves nothing.

    A cache whose size the user limits has files of its own beside each program, so JAX's own `put` writes it.
    """
    if cache.eviction_enabled:
        return put(cache, key, value)
    folder, target = Path(cache.path), Path(cache.path, f"{key}{_SUFFIX}")
    try:
        descriptor = os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o600)
    except (OSError, AttributeError):  # a file system or a system without such files
        beside = folder / f".{os.getpid()}.{key[-32:]}.tmp"
        beside.write_bytes(value)
        beside.replace(target)
        return None
    with open(descriptor, "wb") as stream:  # noqa: PTH123 -- a descriptor has no path
        stream.write(value)
        stream.flush()
        with suppress(FileExistsError):  # another process was faster
            os.link(f"/proc/self/fd/{descriptor}", target, src_dir_fd=descriptor)  # linkat(2) follows the link
    return None


def load_or_delete(load: Any, key: str, *arguments: Any) -> Any:
    """Load a program as JAX does. Delete its file if it cannot be loaded, and say so: JAX then makes it again."""
    try:
        return load(key, *arguments)
    except Exception as error:
        folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
        if folder is None:
            raise
        path = Path(folder, f"{key}{_SUFFIX}")
        sys.stderr.write(f"{path} cannot be loaded ({type(error).__name__}): it is deleted and made again\n")
        path.unlink(missing_ok=True)
        return None, None
