"""Names of layers in JAX's programs, which profilers show."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import jax
from flax import nnx

from compare.base.names import join_path
from jaxbackend.activations import intercept


@contextmanager
def name_scopes(model: nnx.Module) -> Generator[None]:
    """Name the operations of every layer after its path while the context lasts. Profilers then show the layers."""

    def around(
        path: str, module: Any, call: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        del module
        with jax.named_scope(path):
            return call(*inputs, **options)

    with intercept({join_path(path): module for path, module in nnx.iter_modules(model) if path}, around):
        yield
