"""The dense layers of torch's own attention, which holds the weights of query, key and value in one parameter.

Flax has a layer for each. So each counts as a layer here, and a part of a parameter crosses as a variable.
"""

from collections.abc import Iterator
from typing import Any

from torch import nn

from compare.base.names import join_path
from compare.base.trace import Variable

PARTS = ("query", "key", "value")


def find_inputs(args: Any, kwargs: Any) -> list[Any]:
    """Return query, key and value of a call."""
    return [args[place] if place < len(args) else kwargs[name] for place, name in enumerate(PARTS)]


def list_variables(module: nn.MultiheadAttention, path: str) -> Iterator[tuple[str, tuple[Variable, ...]]]:
    """Yield the name and the variables of query, key, value and output."""
    width = module.embed_dim
    for place, name in enumerate(PARTS):
        rows = f"[{place * width}:{(place + 1) * width}]"
        separate = getattr(module, f"{name[0]}_proj_weight")
        if separate is None:
            kernel = _kernel(join_path((path, f"in_proj_weight{rows}")), width, width)
        else:
            kernel = _kernel(join_path((path, f"{name[0]}_proj_weight")), *reversed(separate.shape))
        bias = () if module.in_proj_bias is None else (_bias(join_path((path, f"in_proj_bias{rows}")), width),)
        yield name, (kernel, *bias)
    out = module.out_proj
    bias = () if out.bias is None else (_bias(join_path((path, "out_proj.bias")), width),)
    yield "out", (_kernel(join_path((path, "out_proj.weight")), *reversed(out.weight.shape)), *bias)


def _kernel(own: str, inputs: int, outputs: int) -> Variable:
    return Variable(own, "kernel", (inputs, outputs), True, axes=(1, 0))


def _bias(own: str, outputs: int) -> Variable:
    return Variable(own, "bias", (outputs,), True, axes=(0,))
