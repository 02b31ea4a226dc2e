"""Find the layer in the name that a framework gives an operation after the scopes in which it was traced."""

import re
from collections.abc import Collection

_SEPARATORS = re.compile(r"[/()]+")


def find_layer(name: str, layers: Collection[str]) -> str:
    """Return the innermost layer among the scopes of a name such as `jit(f)/transpose(jvp(stem.conv))/add`, or ""."""
    return next((scope for scope in reversed(_SEPARATORS.split(name)) if scope in layers), "")
