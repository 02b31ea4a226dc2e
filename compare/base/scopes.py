"""Find the layer in the name that a framework gives an operation after the scopes in which it was traced."""

import re
from collections.abc import Collection

_SEPARATORS = re.compile(r"[/()]+")


def find_layer(name: str, layers: Collection[str]) -> str:
    """Return the innermost layer among the scopes of a name such as `jit(f)/transpose(jvp(stem.conv))/add`, or ""."""
    return next((scope for scope in reversed(_SEPARATORS.split(name)) if scope in layers), "")


def is_backward(name: str, layer: str) -> bool:
    """Tell whether an operation of that name belongs to the backward pass of its layer.

    A transposed convolution is itself the transpose of another one. So only scopes down to the layer's own count.
    """
    parts = name.split("/")
    own = next((index for index, part in enumerate(parts) if layer and layer in _SEPARATORS.split(part)), len(parts))
    return any("transpose(" in part for part in parts[: own + 1])
