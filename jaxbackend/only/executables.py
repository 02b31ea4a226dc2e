"""Programs that were compiled ahead of time and serialised: the knob `exported`."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable

from compare.base.interface import RunSpec
from compare.worker import exported_files


def load_or_compile(
    spec: RunSpec, lower: Callable[[], jax.stages.Lowered], arguments: tuple[Any, ...]
) -> tuple[Callable[..., Any], bool]:
    """Return the compiled program for arguments of these shapes, and whether its file was there before.

    The program returns one array.
    """

    def make(path: Path) -> None:
        path.write_bytes(serialize_executable.serialize(lower().compile())[0])

    device = next(iter(jax.tree.leaves(arguments)[0].devices()))
    shapes = [f"{array.shape}{array.dtype}" for array in jax.tree.leaves(arguments)]
    facts = exported_files.list_facts(
        spec, "jaxbackend", {"jax": jax.__version__}, shapes=shapes, device=device.device_kind
    )
    path, was_there = exported_files.find_or_make(_find_folder(), ".xla", facts, make)
    trees = jax.tree.structure((arguments, {})), jax.tree.structure(0)
    return serialize_executable.deserialize_and_load(path.read_bytes(), *trees), was_there


def _find_folder() -> Path:
    return Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or tempfile.mkdtemp(), "samestep-executables")
