"""Files that torch compiles appear in its cache when they are whole. A compiler that is killed leaves none there."""

import importlib
import os
import shlex
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

_SUFFIXES = (".so", ".o", ".gch")
_ELF, _ELF_HEADER = b"\x7fELF\x02", 64
# Where a 64-bit ELF header has the place of the table of sections, the size of an entry and their number (elf(5)).
_TABLE = struct.Struct("<40xQ10xHH")

Compile = Callable[[str, str], None]
"""Runs a compiler's command line in a folder."""


def publish() -> None:
    """Let torch compile into this process's folder for temporary files, and move what is whole into its cache."""
    builder: Any = importlib.import_module("torch._inductor.cpp_builder")
    if not isinstance(builder._run_compile_cmd, partial):
        builder._run_compile_cmd = partial(compile_and_move, builder._run_compile_cmd)


def compile_and_move(run: Compile, command: str, folder: str) -> None:
    """Run a compiler's command with another output file, and give the file its name when the command has succeeded."""
    words = shlex.split(command)
    if "-o" not in words:
        return run(command, folder)
    place = words.index("-o") + 1
    target = Path(folder, words[place])
    with tempfile.TemporaryDirectory() as private:
        output = Path(private, target.name)
        words[place] = str(output)
        run(shlex.join(words), folder)
        try:
            output.replace(target)
        except OSError:  # on another file system
            beside = target.with_name(f".{os.getpid()}.{Path(private).name}.tmp")
            shutil.copy(output, beside)
            beside.replace(target)
    return None


def drop_broken(folder: Path) -> list[Path]:
    """Delete compiled files in a cache that cannot be loaded, and say so. Return them. Torch then makes them again."""
    paths = [path for path in folder.rglob("*") if path.suffix in _SUFFIXES]
    broken = [path for path in paths if not _is_whole(path)]
    for path in folder.rglob(".*.tmp"):  # of a process that was killed while it wrote
        if _has_ended(path.name.split(".")[1]):
            path.unlink(missing_ok=True)
    for path in broken:
        sys.stderr.write(f"{path} is not whole and cannot be loaded: it is deleted and made again\n")
        with suppress(OSError):
            path.unlink()
    return broken


def _has_ended(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (ValueError, OverflowError, PermissionError):  # no process id, or another user's process
        return False
    return False


def _is_whole(path: Path) -> bool:
    """Tell whether a compiled file reaches to the end of its table of sections, which linkers write last."""
    try:
        with path.open("rb") as stream:
            start, size = stream.read(_ELF_HEADER), os.fstat(stream.fileno()).st_size
    except OSError:  # another process has deleted it
        return True
    if not start.startswith(_ELF):
        return size > 0
    if len(start) < _ELF_HEADER:
        return False
    offset, entry, count = _TABLE.unpack_from(start)
    return size >= offset + entry * count
