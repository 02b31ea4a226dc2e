"""Blocks that the backward pass computes again: the knob `rematerialisation`.

A step then keeps only the inputs of blocks (Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost). The code
of the models does not mention it.
"""

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
from flax import nnx

from jaxbackend import activations

_Record = Callable[[nnx.Module], AbstractContextManager[dict[str, jax.Array]]]
"""Collects the outputs of a module's layers while the context lasts."""


def blocks(model: nnx.Module, lists: Sequence[str]) -> dict[str, nnx.Module]:
    """Return a model's blocks by path. `lists` are the attributes that list them."""
    return {f"{name}.{index}": block for name in lists for index, block in enumerate(getattr(model, name))}


@contextmanager
def apply(model: nnx.Module, lists: Sequence[str], outputs: dict[str, jax.Array], record: _Record) -> Generator[None]:
    """Let each block of a model be computed again for its gradient while the context lasts.

    `record` collects the outputs of its layers, and `outputs` gets them.
    """
    with activations.intercept(blocks(model, lists), _Recomputed(outputs, record)):
        yield


def count_recomputed(program: jax.stages.Lowered) -> int:
    """Return how many blocks a training step computes again.

    Its program has one barrier a block. Barriers of `jaxbackend.gradients` have the name of their operation.
    """
    text = program.as_text(debug_info=True)
    names = dict(re.findall(r'^(#loc\d+) = loc\("([^"]*)"', text, re.MULTILINE))
    places = re.findall(r"optimization_barrier .* loc\((#loc\d+)\)$", text, re.MULTILINE)
    return sum(not names.get(place, "").endswith("optimization_barrier") for place in places)


class _Recomputed:
    """Replaces the calls of blocks (`jaxbackend.activations.Around`)."""

    def __init__(self, outputs: dict[str, jax.Array], record: _Record) -> None:
        self._outputs, self._record = outputs, record

    def __call__(
        self, path: str, module: Any, call: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        del call, options  # a block takes only arrays
        graph, state = nnx.split(module)

        @jax.checkpoint
        def run(state: Any, inputs: tuple[jax.Array, ...]) -> Any:
            block: Any = nnx.merge(graph, state, copy=True)  # with variables of this trace
            with self._record(block) as outputs:
                result = block(*inputs)
            return result, nnx.state(block, nnx.BatchStat), outputs

        result, statistics, outputs = run(state, inputs)
        nnx.update(module, statistics)
        self._outputs.update({f"{path}.{name}": output for name, output in outputs.items()})
        return result
