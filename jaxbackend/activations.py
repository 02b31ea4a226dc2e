"""Every layer's output by the layer's path, in execution order; a layer's second call in one pass is `PATH#2`."""

from collections import OrderedDict
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import jax
from flax import nnx


@contextmanager
def recorded(model: nnx.Module) -> Generator[dict[str, jax.Array]]:
    """Collect the output of each layer without sub-layers while the context lasts."""
    layers = {id(module): ".".join(map(str, path)) for path, module in nnx.iter_modules(model) if _is_leaf(module)}
    kinds = {type(module) for _, module in nnx.iter_modules(model) if _is_leaf(module)}
    outputs: OrderedDict[str, jax.Array] = OrderedDict()  # as a pytree it keeps its order, a dict would be sorted

    def recording(call: Any) -> Any:
        def wrapped(self: Any, *inputs: Any) -> Any:
            outputs[unused(layers[id(self)], outputs)] = result = call(self, *inputs)
            return result

        return wrapped

    with ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(mock.patch.object(kind, "__call__", recording(kind.__call__)))
        yield outputs


def unused(path: str, outputs: Mapping[str, Any]) -> str:
    """Return the path, numbered if an earlier call has taken it."""
    calls = 1 + sum(name.partition("#")[0] == path for name in outputs)
    return path if calls == 1 else f"{path}#{calls}"


def _is_leaf(module: Any) -> bool:
    return not any(isinstance(value, nnx.Module) for value in vars(module).values())
