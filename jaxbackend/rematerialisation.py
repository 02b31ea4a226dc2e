"""Blocks that are computed again in the backward pass, in place of keeping what they computed (Chen et al. 2016).

Training Deep Nets with Sublinear Memory Cost: of a block, its input alone is kept. Models stay free of it.
"""

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from flax import nnx

from jaxbackend import activations


def blocks(model: nnx.Module, lists: Sequence[str]) -> dict[str, nnx.Module]:
    """Return a model's blocks by path: the modules in those of its attributes that list them."""
    return {f"{name}.{index}": block for name in lists for index, block in enumerate(getattr(model, name))}


@contextmanager
def applied(model: nnx.Module, lists: Sequence[str], outputs: dict[str, jax.Array]) -> Generator[None]:
    """Have each block of a model recomputed while the context lasts; `outputs` gets those of its layers."""
    with activations.intercepted(blocks(model, lists), _Recomputed(outputs)):
        yield


def recomputed(program: jax.stages.Lowered) -> int:
    """Return how many blocks a training step recomputes, by what its program keeps apart from the first time.

    What is kept apart for a function's own gradient (`jaxbackend.gradients`) goes by the name of that operation.
    """
    text = program.as_text(debug_info=True)
    names = dict(re.findall(r'^(#loc\d+) = loc\("([^"]*)"', text, re.MULTILINE))
    places = re.findall(r"optimization_barrier .* loc\((#loc\d+)\)$", text, re.MULTILINE)
    return sum(not names.get(place, "").endswith("optimization_barrier") for place in places)


class _Recomputed:
    """Stands for the calls of blocks (`jaxbackend.activations.Around`)."""

    def __init__(self, outputs: dict[str, jax.Array]) -> None:
        self._outputs = outputs

    def __call__(
        self, path: str, module: Any, call: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        del call, options  # a block takes arrays alone
        graph, state = nnx.split(module)

        @jax.checkpoint
        def run(state: Any, inputs: tuple[jax.Array, ...]) -> Any:
            block: Any = nnx.merge(graph, state, copy=True)  # variables of this trace's own
            with activations.recorded(block) as outputs:
                result = block(*inputs)
            return result, nnx.state(block, nnx.BatchStat), outputs

        result, statistics, outputs = run(state, inputs)
        nnx.update(module, statistics)
        self._outputs.update({f"{path}.{name}": output for name, output in outputs.items()})
        return result
