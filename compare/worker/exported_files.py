"""Files of programs that were exported and compiled ahead of time. A process loads one and compiles nothing.

A file is found by everything that decides it: the spec, the weights if the program holds them, the images' shape, the
sources of samestep and of the backend, and versions. It lies in the framework's own cache folder, which is private.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from compare.base.interface import RunSpec

_ANY = ("XLA_FLAGS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")


def find_or_make(
    folder: Path, suffix: str, facts: Mapping[str, Any], make: Callable[[Path], None]
) -> tuple[Path, bool]:
    """Return the file of a program, and whether it was there before. It appears whole or not at all.

    Args:
        folder: where such files lie.
        suffix: the end of the file's name.
        facts: everything that decides the program, as JSON types.
        make: writes the program to a path.
    """
    key = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    target = folder / f"{key}{suffix}"
    if target.exists():
        return target, True
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = folder / f"{os.getpid()}-{key}{suffix}"
    try:
        make(part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target, False


def list_facts(spec: RunSpec, package: str, versions: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """Return what decides a backend's program besides its weights. `more` adds to it."""
    return {
        "spec": replace(spec, data="", weights=None, batch_size=1, seed=0, memory_limit_bytes=None).to_json(),
        "sources": [_hash_sources("compare"), _hash_sources(package)],
        "versions": {**versions, "python": sys.version},
        "variables": {name: os.environ.get(name) for name in _ANY},
        **more,
    }


@cache
def _hash_sources(package: str) -> str:
    folder, digest = Path(sys.modules[package].__file__ or "").parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
