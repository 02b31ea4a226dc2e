"""Blocks that the backward pass computes again: the knob `rematerialisation`.

A step then keeps only the inputs of blocks (Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost). The code
of the models does not mention it.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from torchbackend.layers import BatchNorm


def blocks(model: nn.Module, lists: Sequence[str]) -> dict[str, nn.Module]:
    """Return a model's blocks by path. `lists` are the attributes that list them."""
    return {f"{name}.{index}": block for name in lists for index, block in enumerate(getattr(model, name))}


def apply(model: nn.Module, lists: Sequence[str]) -> None:
    """Let each block of a model be computed again for its gradient. This changes the model in place."""
    for block in blocks(model, lists).values():
        block.forward = _Recomputed(block)


def count_recomputed(model: nn.Module) -> int:
    """Return how many blocks a training step computes again."""
    return sum(isinstance(module.forward, _Recomputed) for module in model.modules())


class _Recomputed:
    """Replaces the `forward` of a block."""

    def __init__(self, block: nn.Module) -> None:
        self._forward = block.forward
        self._norms = [module for module in block.modules() if isinstance(module, BatchNorm)]

    def __call__(self, *inputs: torch.Tensor) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*inputs)
        # A compiled program moves the running statistics once, and takes no such contexts.
        options: dict[str, Any] = {} if torch.compiler.is_compiling() else {"context_fn": self._contexts}
        # Twins draw no random numbers, so there is no state to preserve. A captured graph could not read it.
        return checkpoint(self._forward, *inputs, use_reentrant=False, preserve_rng_state=False, **options)

    def _contexts(self) -> Any:
        return nullcontext(), _recomputing(self._norms)


@contextmanager
def _recomputing(norms: Sequence[BatchNorm]) -> Generator[None]:
    for norm in norms:
        norm.recomputing = True
    try:
        yield
    finally:
        for norm in norms:
            norm.recomputing = False
