"""CUDA graphs on a CPU: the kernels of captured steps run again on the same tensors, without Python."""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Graph(TorchDispatchMode):
    """The part of `torch.cuda.CUDAGraph` that the backend uses."""

    def __init__(self) -> None:
        super().__init__()
        self._kernels: list[tuple[Any, Any, Any, Any]] = []
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "capturing cannot wait for the device"
        for given in tree_leaves((args, kwargs or {})):
            if isinstance(given, torch.Tensor):
                held = given.untyped_storage()
                self._before.setdefault(held.data_ptr(), (held, held.clone()))
        result = func(*args, **(kwargs or {}))
        self._kernels.append((func, args, kwargs or {}, result))
        return result

    def put_back(self) -> None:
        """Restore all state, because capturing runs no kernel."""
        for held, value in self._before.values():
            held.copy_(value)
        self._before.clear()

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, result in self._kernels:
                for kept, made in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                    if isinstance(kept, torch.Tensor) and kept.data_ptr() != made.data_ptr():
                        kept.copy_(made)


class Stream:
    def wait_stream(self, other: Any) -> None:
        pass


def pretend(patch: pytest.MonkeyPatch) -> None:
    """Let steps be captured on a CPU."""

    @contextmanager
    def capturing(graph: Graph, capture_error_mode: str) -> Generator[None]:
        assert capture_error_mode == "thread_local"
        with graph:
            yield
        graph.put_back()

    patch.setattr(torch.cuda, "CUDAGraph", Graph)
    patch.setattr(torch.cuda, "graph", capturing)
    patch.setattr(torch.cuda, "Stream", Stream)
    patch.setattr(torch.cuda, "current_stream", Stream)
    patch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
