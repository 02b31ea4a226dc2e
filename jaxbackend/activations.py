"""Every layer's output by the layer's path, in execution order; a layer's second call in one pass is `PATH#2`."""

from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar
from unittest import mock

import jax
from flax import nnx

from jaxbackend import layout

_T = TypeVar("_T")

Around = Callable[[str, Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""`around(path, module, call, inputs, options)` stands for the call `call(*inputs, **options)` of a module."""


@contextmanager
def recorded(model: nnx.Module) -> Generator[dict[str, jax.Array]]:
    """Collect the output of each layer without sub-layers while the context lasts."""
    layers = {layout.name(path): module for path, module in nnx.iter_modules(model) if _is_leaf(module)}
    outputs: OrderedDict[str, jax.Array] = OrderedDict()  # as a pytree it keeps its order, a dict would be sorted

    def recording(
        path: str, module: Any, call: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        del module
        outputs[unused(path, outputs)] = result = call(*inputs, **options)
        return result

    with intercepted(layers, recording):
        yield outputs


@contextmanager
def intercepted(layers: Mapping[str, Any], around: Around) -> Generator[None]:
    """Let `around` stand for every call of these nnx modules while the context lasts."""
    paths = {id(module): path for path, module in layers.items()}
    running: set[str] = set()  # a class whose call goes on to its base's call is one layer, not two

    def standing(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *inputs: Any, **options: Any) -> Any:
            path = paths.get(id(self))
            if path is None or path in running:
                return call(self, *inputs, **options)
            running.add(path)
            try:
                return around(path, self, partial(call, self), inputs, options)
            finally:
                running.discard(path)

        return wrapped

    with ExitStack() as stack:
        for kind in {type(module) for module in layers.values()}:
            stack.enter_context(mock.patch.object(kind, "__call__", standing(kind.__call__)))
        yield


def unused(path: str, outputs: Mapping[str, Any]) -> str:
    """Return the path, numbered if an earlier call has taken it."""
    if path not in outputs:
        return path
    calls = 1 + sum(name.partition("#")[0] == path for name in outputs)
    return f"{path}#{calls}"


def product(layers: Mapping[str, str], outputs: Mapping[str, _T]) -> _T:
    """Return the first convolution's output, else a dense layer's, by `layers`' roles: products' dtype shows there."""
    for role in ("convolution", "dense"):
        for name, output in outputs.items():
            if layers.get(name) == role:
                return output
    return next(iter(outputs.values()))


def _is_leaf(module: Any) -> bool:
    return not any(isinstance(value, nnx.Module) for value in vars(module).values())
