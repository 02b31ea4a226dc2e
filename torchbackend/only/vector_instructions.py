"""Find this machine's vector instructions as TorchInductor does, and remember which of its probes can be loaded."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partialmethod
from pathlib import Path
from typing import Any
from unittest import mock

from torch._inductor import cpu_vec_isa


def find(folder: Path | None) -> None:
    """Let torch find the vector instructions of this machine, which it remembers in this process.

    For that, torch compiles small probes, and loads each in a process of its own. The probes stay in the folder. A
    probe that an earlier process has loaded is not loaded again.
    """
    probe: Any = cpu_vec_isa.VecISA
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ))
        os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
        if folder is not None:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
            if load := getattr(probe, "_probe_load", None):  # torch 2.11 has none
                stack.enter_context(mock.patch.object(probe, "_probe_load", partialmethod(_load_once, load)))
        cpu_vec_isa.valid_vec_isa_list()


def _load_once(instructions: Any, load: Callable[[Any, str], bool], path: str) -> bool:
    """Tell whether a probe can be loaded. Its name has a digest of the compiler, its flags and torch's version."""
    marker = Path(f"{path}.loads")
    if not marker.exists() and load(instructions, path):
        marker.touch()
    return marker.exists()
