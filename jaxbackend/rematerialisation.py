"""Blocks that are computed again in the backward pass, in place of keeping what they computed (Chen et al. 2016).

Training Deep Nets with Sublinear Memory Cost: of a block, its input alone is kept. Models stay free of it.
"""

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
from flax import nnx

from jaxbackend import activations

_Watched = Callable[[nnx.Module], AbstractContextManager[dict[str, jax.Array]]]
"""Gives the outputs of a module's layers, as they come, while the context lasts."""


def blocks(model: nnx.Module, lists: Sequence[str]) -> dict[str, nnx.Module]:
    """Return a model's blocks by path: the modules in those of its attributes that list them."""
    return {f"{name}.{index}": block for name in lists for index, block in enumerate(getattr(model, name))}


@contextmanager
def applied(
    model: nnx.Module, lists: Sequence[str], outputs: dict[str, jax.Array], watched: _Watched
) -> Generator[None]:
    """Have each block of a model recomputed while the context lasts; `outputs` gets those of its layers, `watched`."""
    with activations.intercepted(blocks(model, lists), _Recomputed(outputs, watched)):
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

    def __init__(self, outputs: dict[str, jax.Array], watched: _Watched) -> None:
        self._outputs, self._watched = outputs, watched

    def __call__(
        self, path: str, module: Any, call: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        del call, options  # a block takes arrays alone
        graph, state = nnx.split(module)

        @jax.checkpoint
        def run(state: Any, inputs: tuple[jax.Array, ...]) -> Any:
            block: Any = nnx.merge(graph, state, copy=True)  # variables of this trace's own
            with self._watched(block) as outputs:
                result = block(*inputs)
            return result, nnx.state(block, nnx.BatchStat), outputs

        result, statistics, outputs = run(state, inputs)
        nnx.update(module, statistics)
        self._outputs.update({f"{path}.{name}": output for name, output in outputs.items()})
        return result
