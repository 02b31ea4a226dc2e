"""Names that both frameworks share for the functions between layers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from compare.base.trace import name_factor, name_padding

_SAME = {
    "add": "add",
    "radd": "add",
    "iadd": "add",
    "sub": "subtract",
    "rsub": "subtract",
    "subtract": "subtract",
    "mul": "multiply",
    "multiply": "multiply",
    "div": "divide",
    "rdiv": "divide",
    "rmul": "multiply",
    "imul": "multiply",
    "divide": "divide",
    "true_divide": "divide",
    "cat": "concatenate",
    "concat": "concatenate",
    "concatenate": "concatenate",
    "matmul": "matmul",
    "mm": "matmul",
    "bmm": "matmul",
    "swish": "silu",
    "amax": "max",
    "leaky_relu": "leaky-relu",
    "log_sigmoid": "logsigmoid",
}
_PRODUCTS, _QUOTIENTS = ("mul", "rmul", "imul", "multiply"), ("div", "idiv", "truediv", "divide", "true_divide")
REDUCTIONS = ("mean", "sum", "amax", "amin", "max", "min", "norm", "var", "std", "logsumexp", "prod", "median")
REDUCTIONS += ("var_mean", "std_mean", "linalg_norm", "linalg_vector_norm", "vector_norm")
CONSTANTS = ("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty")
"""Functions whose results have nothing of their tensor but its shape or dtype."""
_UNNAMED = ("contiguous", "clone", "detach", "to", "type", "type_as", "float", "double", "half", "bfloat16", "get")
_UNNAMED += ("requires_grad", "expand", "expand_as", "checkpoint", "alias", "data", "broadcast_to")
_RESHAPES = ("flatten", "view", "reshape", "unflatten", "squeeze", "unsqueeze", "ravel", "view_as", "reshape_as")
_TRANSPOSES = ("permute", "movedim", "moveaxis", "transpose", "swapaxes", "swapdims", "t", "adjoint")
_SLICES = ("getitem", "chunk", "split", "narrow", "select", "unbind", "tensor_split", "index_select")
_LAYOUT_CHANGES = ((0, 2, 3, 1), (0, 3, 1, 2), (1, -1), (-1, 1), (3, 1), (1, 3))


def shared_name(
    function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], result: torch.Tensor
) -> str | None:
    """Return the name of one of torch's functions in both frameworks (`compare.base.trace`).

    None where it only changes dtype, memory order or axes of length 1. `result` is the function's result.
    """
    name = plain_name(function)
    if name in _UNNAMED or "dropout" in name:
        return None
    x: torch.Tensor | None = next((value for value in arguments if isinstance(value, torch.Tensor)), None)
    if name in _RESHAPES or name in _SLICES:
        if x is not None and _without_ones(x.shape) == _without_ones(result.shape):
            return None
        return "reshape" if name in _RESHAPES else "slice"
    if name in _TRANSPOSES:
        moved = tuple(_numbers(arguments[1:]) or _numbers(tuple(keywords.values())))
        return None if result.ndim == 4 and moved in _LAYOUT_CHANGES else "transpose"
    if x is not None and "pool" in name:
        return _pool_name(name, x, arguments, keywords)
    if name in (*_PRODUCTS, *_QUOTIENTS) and not keywords and (factor := _factor_name(name, arguments)):
        return factor
    if name == "pad":
        return _padding_name(arguments, keywords, result.ndim - 2)
    if name == "gelu":
        return "gelu(tanh)" if keywords.get("approximate") == "tanh" else "gelu(exact)"
    if name in ("clamp", "clip", "clamp_min", "hardtanh"):
        return _clamp_name(name, arguments, keywords)
    return _SAME.get(name, name)


def attention_names(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the functions within torch's fused attention."""
    scale = keywords.get("scale")
    factor = arguments[0].shape[-1] ** -0.5 if scale is None else float(scale)
    return "matmul", name_factor(factor), "softmax", "matmul"


def _factor_name(name: str, values: Sequence[Any]) -> str | None:
    """Return the name of a product with a number, or with a tensor of one number that nothing trains."""
    others = [value for value in values if not isinstance(value, torch.Tensor) or value.ndim == 0]
    if len(values) != 2 or len(others) != 1 or (name in _QUOTIENTS and others[0] is values[0]):
        return None
    if isinstance(others[0], torch.Tensor) and (others[0].requires_grad or not others[0].is_floating_point()):
        return None
    with torch._C.DisableTorchFunction():
        value = float(others[0])
    if name in _QUOTIENTS:
        return name_factor(1 / value) if value else None
    return name_factor(value)


def plain_name(function: Any) -> str:
    """Return a function's name without the underscores of operators and of forms that work in place."""
    return str(getattr(function, "__name__", function)).strip("_")


def _clamp_name(name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> str:
    names = ("min_val", "max_val") if name == "hardtanh" else ("min", "max")
    default = (-1.0, 1.0) if name == "hardtanh" else (None, None)
    low, high = (argument(arguments, keywords, index + 1, key, default[index]) for index, key in enumerate(names))
    return {(0, None): "relu", (0, 6): "relu6"}.get((low, high), f"clamp({low}, {high})")


def _padding_name(arguments: Sequence[Any], keywords: Mapping[str, Any], rank: int) -> str:
    """Return the name of zeros around positions, `pad` for other padding."""
    edges = list(argument(arguments, keywords, 1, "pad", ()))
    mode, value = (argument(arguments, keywords, *each) for each in ((2, "mode", "constant"), (3, "value", None)))
    if mode != "constant" or value or len(edges) > 2 * rank:
        return "pad"
    pairs = [edges[place : place + 2] for place in range(0, len(edges), 2)]
    return name_padding([[0, 0]] * (rank - len(pairs)) + pairs[::-1])


def _pool_name(name: str, x: torch.Tensor, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> str | None:
    """Return `max-pool(kernel, stride, padding)` or `average-pool(...)`. The mean of whole images is `mean`."""
    kind, adaptive = ("max" if "max" in name else "average"), name.startswith("adaptive")
    rank = x.ndim - 2
    sizes = list(x.shape[2:])
    if adaptive:
        wanted = argument(arguments, keywords, 1, "output_size", 1)
        outputs = [
            size if output is None else output for output, size in zip(_spread(wanted, rank), sizes, strict=True)
        ]
        if outputs == sizes:
            return None
        if any(size % output for size, output in zip(sizes, outputs, strict=True)):
            return f"adaptive-{kind}-pool({outputs})"
        kernel = stride = [size // output for size, output in zip(sizes, outputs, strict=True)]
        padding = [[0, 0]] * rank
    elif name in ("max_pool2d", "avg_pool2d", "max_pool1d", "avg_pool1d", "max_pool3d", "avg_pool3d"):
        kernel = _spread(argument(arguments, keywords, 1, "kernel_size", None), rank)
        stride = _spread(argument(arguments, keywords, 2, "stride", None) or kernel, rank)
        edges = _spread(argument(arguments, keywords, 3, "padding", 0), rank)
        up = bool(argument(arguments, keywords, 5 if kind == "max" else 4, "ceil_mode", False))
        padding = [_padding(*axis, up=up) for axis in zip(sizes, kernel, stride, edges, strict=True)]
    else:
        return name
    if kernel == sizes and not any(map(any, padding)):
        return "mean" if kind == "average" else "max"
    counted = kind == "max" or argument(arguments, keywords, 5, "count_include_pad", True) or not any(map(any, padding))
    return f"{kind}-pool({kernel}, {stride}, {padding}{'' if counted else ', padding not counted'})"


def _padding(size: int, kernel: int, stride: int, edge: int, *, up: bool) -> list[int]:
    """Return the padding before and after. With `up`, a last window may begin within image or padding."""
    if not up:
        return [edge, edge]
    windows = math.ceil((size + 2 * edge - kernel) / stride) + 1
    if (windows - 1) * stride >= size + edge:
        windows -= 1
    return [edge, edge + max(0, (windows - 1) * stride + kernel - size - 2 * edge)]


def reduced_axes(name: str, args: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the axes that a function reduces, or None for another function or all axes."""
    if name not in REDUCTIONS:
        return None
    axes = keywords.get("dim", next((value for value in args[1:] if isinstance(value, (int, tuple, list))), None))
    if name == "norm" and "dim" not in keywords:
        axes = argument(args, keywords, 2, "dim", None)
    return None if axes is None or isinstance(axes, bool) else (axes,) if isinstance(axes, int) else tuple(axes)


def argument(arguments: Sequence[Any], keywords: Mapping[str, Any], index: int, name: str, default: Any) -> Any:
    """Return one argument of a call by its place or name."""
    return arguments[index] if index < len(arguments) else keywords.get(name, default)


def _spread(value: Any, rank: int) -> list[Any]:
    return list(value) * (rank if len(value) == 1 else 1) if isinstance(value, Sequence) else [value] * rank


def _numbers(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(number for value in values for number in (value if isinstance(value, Sequence) else (value,)))


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]
