"""The functions between layers, in words that both frameworks share."""

from collections.abc import Sequence
from typing import Any

_FUNCTIONS = {  # that jax compiles under a name of their own
    "celu": "celu",
    "elu": "elu",
    "gelu": "gelu",
    "hard_sigmoid": "hardsigmoid",
    "hard_silu": "hardswish",
    "hard_swish": "hardswish",
    "hard_tanh": "clamp(-1.0, 1.0)",
    "leaky_relu": "leaky-relu",
    "log_sigmoid": "logsigmoid",
    "log_softmax": "log_softmax",
    "mish": "mish",
    "relu": "relu",
    "relu6": "relu6",
    "selu": "selu",
    "silu": "silu",
    "softmax": "softmax",
    "softplus": "softplus",
    "swish": "silu",
}
_PRIMITIVES = {
    "add": "add",
    "add_any": "add",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "integer_pow": "pow",
    "square": "pow",
    "logistic": "sigmoid",
    "reduce_sum": "sum",
    "reduce_max": "max",
    "rev": "flip",
    "dot_general": "matmul",
    "dynamic_slice": "slice",
    "gather": "slice",
}
_SILENT = ("broadcast_in_dim", "convert_element_type", "stop_gradient", "copy", "copy_p", "name", "squeeze")
_LAYOUT_CHANGES = ((0, 2, 3, 1), (0, 3, 1, 2))


def function(equation: Any, program: Any) -> str | None:
    """Return what a compiled function of jax is called in both frameworks, None where it is known by its parts."""
    name = equation.params.get("name") if equation.primitive.name in ("jit", "pjit") else None
    if not isinstance(name, str):
        return None
    if name == "gelu":
        return "gelu(tanh)" if "tanh" in str(program) else "gelu(exact)"
    if name == "clip":
        return _clamped(equation)
    return _FUNCTIONS.get(name)


def word(equation: Any) -> str | None:
    """Return what a primitive is called in jax, None where it only changes dtype, layout or axes of length 1.

    Some are called as in both frameworks already; `spoken` has the words for all.
    """
    name, told = equation.primitive.name, equation.params
    if name in _SILENT or not equation.invars:  # what is made of nothing, as a range is, is no function of the images
        return None
    shapes = [_longer(each.aval.shape) for each in (equation.invars[0], equation.outvars[0])]
    if name in ("reshape", "slice", "dynamic_slice", "gather") and shapes[0] == shapes[1]:
        return None
    if name == "transpose" and tuple(told["permutation"]) in _LAYOUT_CHANGES:
        return None
    if name == "max" and any(_literal(each) == 0 for each in equation.invars):
        return "relu"
    if name in ("reduce_window_max", "reduce_window_sum"):
        size, stride, padding = (told[key][1:-1] for key in ("window_dimensions", "window_strides", "padding"))
        if tuple(size) == equation.invars[0].aval.shape[1:-1] and not any(map(any, padding)):
            return "reduce_max" if name.endswith("max") else "reduce_sum"
        kind = "max" if name.endswith("max") else "average"
        return f"{kind}-pool({list(size)}, {list(stride)}, {[list(sides) for sides in padding]})"
    return name


def spoken(raw: Sequence[str], runs: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the words of primitives as both frameworks say them.

    `runs` are functions that jax writes out under no name of their own, by their words.
    """
    found, rest = list[str](), list(raw)
    while rest:
        named = ((name, len(run)) for name, run in runs.items() if tuple(rest[: len(run)]) == run)
        name, length = next(named, (_PRIMITIVES.get(rest[0], rest[0]), 1))
        if name.startswith("average-pool") and rest[1:2] == ["div"]:
            length = 2
        found.append(name)
        rest = rest[length:]
    return tuple(found)


def _clamped(equation: Any) -> str:
    low, high = (_literal(each) for each in equation.invars[1:3])
    return {(0, 6): "relu6"}.get((low, high), f"clamp({low}, {high})")


def _literal(variable: Any) -> Any:
    value: Any = getattr(variable, "val", None)  # only a literal has one
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _longer(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]
