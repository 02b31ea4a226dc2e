"""Named arrays in files, which a reader maps into memory: those of a large model's record would not fit there at once.

The files are safetensors (https://huggingface.co/docs/safetensors): eight bytes, the length of a JSON header, which
says where each tensor's bytes are.
"""

import errno
import functools
import json
import re
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from safetensors import SafetensorError

# safetensors' annotations leave the path's type parameter open.
from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]

from compare.base.interface import Array, Arrays, DiskFull, Refused

_LENGTH = struct.Struct("<Q")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_IN_MEMORY = ("tmpfs", "ramfs")
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1", "BOOL": "|b1"}


def save(arrays: Arrays, path: Path) -> None:
    """Write arrays to a file and replace an old one. Folders are made.

    Raises:
        DiskFull: where the disk has no space for them.
        Refused: a file may not be so large here.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, path)
    except (OSError, SafetensorError) as error:
        size = sum(array.nbytes for array in arrays.values()) / 2**30
        if _number(error) == errno.EFBIG:
            raise Refused(
                f"{path} of {size:.3g} GiB is larger than files may be here; allowed: a higher limit (ulimit -f)"
            ) from error
        if _number(error) not in _FULL:
            raise
        raise DiskFull(
            f"no space is left in {path.parent}, where {size:.3g} GiB more were to be written; "
            "allowed: TMPDIR set to a folder with more space"
        ) from error


def keep(arrays: Arrays, path: Path) -> Arrays:
    """Return arrays to be read later: as they are while `memory_takes` them, else mapped from a file."""
    if memory_takes(0):  # they are in it already
        return arrays
    save(arrays, path)
    return load(path)


def memory_takes(size: int) -> bool:
    """Whether half of the machine's memory is free, so many bytes more in it."""
    memory = psutil.virtual_memory()
    return 2 * (memory.available - size) > memory.total


def find_room(folder: Path) -> int:
    """Return the bytes that may still be written in a folder.

    In a file system that is in memory, as /tmp is on some systems, that is half of the memory there is at most.
    """
    free = shutil.disk_usage(folder).free
    return min(free, psutil.virtual_memory().available // 2) if _file_system(folder) in _IN_MEMORY else free


@functools.cache
def _file_system(folder: Path) -> str:
    """Return the kind of file system that a folder is in, "" where the machine does not tell."""
    of = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}  # the last one lies on top
    resolved = folder.resolve()
    return next((of[each] for each in (resolved, *resolved.parents) if each in of), "")


def load(path: Path, *, writable: bool = False) -> Arrays:
    """Map the arrays of a file that `save` wrote, read-only or `writable`. Unused arrays are never read.

    Changes stay in this process and never reach the file.
    """
    mapped = np.asarray(np.memmap(path, np.uint8, "c" if writable else "r"))
    (length,) = _LENGTH.unpack(mapped[: _LENGTH.size].tobytes())
    start = _LENGTH.size + length
    header: dict[str, dict[str, Any]] = json.loads(mapped[_LENGTH.size : start].tobytes())
    return {name: _array(mapped[start:], **told) for name, told in header.items() if name != "__metadata__"}


def _number(error: OSError | SafetensorError) -> int | None:
    """Return the system's number of an error, which safetensors gives in its text alone."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def _array(mapped: Array, dtype: str, shape: Sequence[int], data_offsets: Sequence[int]) -> Array:
    begin, end = data_offsets
    return mapped[begin:end].view(_DTYPES[dtype]).reshape(shape)
