"""Every layer's output by the layer's path, in execution order. A layer's second call in one pass is `PATH#2`."""

from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar
from unittest import mock

import jax
from flax import nnx

from compare.base.names import join_path
from compare.base.trace import number_call

_T = TypeVar("_T")

Around = Callable[[str, Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""`around(path, module, call, inputs, options)` replaces the call `call(*inputs, **options)` of a module."""


PATH = "samestep_path"
"""The attribute with a layer's path, which stays with the copy that nnx.remat calls instead of the layer."""


@contextmanager
def record(model: nnx.Module) -> Generator[dict[str, jax.Array]]:
    """Collect the outputs of all layers without sub-layers while the context lasts."""
    layers = {join_path(path): module for path, module in nnx.iter_modules(model) if _is_leaf(module)}
    outputs: OrderedDict[str, jax.Array] = OrderedDict()  # a pytree that keeps its order, unlike a dict

    def around(
        path: str, module: Any, call: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        del module
        outputs[number_call(path, outputs)] = result = call(*inputs, **options)
        return result

    with intercept(layers, around):
        yield outputs


@contextmanager
def intercept(layers: Mapping[str, Any], around: Around, kinds: Mapping[str, type] | None = None) -> Generator[None]:
    """Let `around` replace every call of these nnx modules while the context lasts.

    `kinds` names a base class for some modules. `around` then replaces only the call of that class.
    """
    kinds = {path: type(module) for path, module in layers.items()} | dict(kinds or {})
    paths = {id(module): path for path, module in layers.items()}

    def replace(kind: type, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *inputs: Any, **options: Any) -> Any:
            path = paths.get(id(self), vars(self).get(PATH))
            if path is None or kinds.get(path) is not kind:  # a class that calls its base class is one layer, not two
                return call(self, *inputs, **options)
            return around(path, self, partial(call, self), inputs, options)

        return wrapped

    with ExitStack() as stack:
        for kind in set(kinds.values()):
            stack.enter_context(mock.patch.object(kind, "__call__", replace(kind, kind.__call__)))
        yield


def product(roles: Mapping[str, str], outputs: Mapping[str, _T]) -> _T:
    """Return the output of the first convolution, else of a dense layer, by the layers' `roles`.

    Its dtype is that of products.
    """
    for role in ("convolution", "dense"):
        for name, output in outputs.items():
            if roles.get(name) == role:
                return output
    return next(iter(outputs.values()))


def _is_leaf(module: Any) -> bool:
    return not any(isinstance(value, nnx.Module) for value in vars(module).values())
