"""Names that both frameworks share for the functions between layers."""

import re
from collections.abc import Sequence
from typing import Any

from compare.base.trace import FACTOR, name_factor, name_padding

_FUNCTIONS = {  # jax compiles these under names of their own
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
    "split": "slice",
}
DIVIDED_BY_COUNTS = "div by an array that comes from no data"
_PRIMITIVES[DIVIDED_BY_COUNTS] = "divide"
_UNNAMED = ("broadcast_in_dim", "convert_element_type", "stop_gradient", "copy", "copy_p", "name", "squeeze")
_LAYOUT_CHANGES = ((0, 2, 3, 1), (0, 3, 1, 2))


def function_name(equation: Any, program: Any) -> str | None:
    """Return the shared name of a compiled function of jax, None where its primitives are named instead."""
    name = equation.params.get("name") if equation.primitive.name in ("jit", "pjit") else None
    if not isinstance(name, str):
        return None
    if name == "gelu":
        return "gelu(tanh)" if "tanh" in str(program) else "gelu(exact)"
    if name == "clip":
        return _clamp_name(equation, program)
    return _FUNCTIONS.get(name)


def primitive_name(equation: Any, constant: float | None = None) -> str | None:
    """Return jax's name of a primitive, None where it only changes dtype, layout or axes of length 1.

    `shared_names` translates it for both frameworks. A product or quotient with a `constant` has it in its name.
    """
    name, parameters = equation.primitive.name, equation.params
    if name in _UNNAMED or not equation.invars:  # a primitive without inputs, such as a range, does not read the images
        return None
    shapes = [_without_ones(variable.aval.shape) for variable in (equation.invars[0], equation.outvars[0])]
    if name in ("reshape", "slice", "dynamic_slice", "gather") and shapes[0] == shapes[1]:
        return None
    if name == "transpose" and tuple(parameters["permutation"]) in _LAYOUT_CHANGES:
        return None
    if name == "pad" and constant == 0 and not any(parameters["padding_config"][0] + parameters["padding_config"][-1]):
        return name_padding([edges[:2] for edges in parameters["padding_config"][1:-1]])
    if name in ("max", "min"):
        bound = next((value for value in map(_literal, equation.invars) if isinstance(value, (int, float))), None)
        if bound is not None:
            return name_clamp(bound, None) if name == "max" else name_clamp(None, bound)
    if constant and name in ("mul", "div"):
        return f"{name} {name_factor(constant if name == 'mul' else 1 / constant)}"
    if name in ("reduce_window_max", "reduce_window_sum"):
        size, stride, padding = (parameters[key][1:-1] for key in ("window_dimensions", "window_strides", "padding"))
        if tuple(size) == equation.invars[0].aval.shape[1:-1] and not any(map(any, padding)):
            return "reduce_max" if name.endswith("max") else "reduce_sum"
        kind = "max" if name.endswith("max") else "average"
        return f"{kind}-pool({list(size)}, {list(stride)}, {[list(sides) for sides in padding]})"
    return name


def shared_names(primitives: Sequence[str], written_out: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the names of primitives in both frameworks.

    `written_out` has the primitives of each function that jax writes out without a name.
    """
    names, rest = list[str](), list(primitives)
    while rest:
        plain = [without_factor(primitive) for primitive in rest]
        matches = ((name, len(run)) for name, run in written_out.items() if tuple(plain[: len(run)]) == run)
        own = rest[0].removeprefix(plain[0]).strip() or _PRIMITIVES.get(rest[0], rest[0])
        name, length = next(matches, (own, 1))
        if name.startswith("average-pool") and plain[1:2] in (["div"], [DIVIDED_BY_COUNTS]):
            length = 2
            if plain[1] == DIVIDED_BY_COUNTS and re.search("[1-9]", name.rpartition("[[")[2]):  # it is padded
                name = f"{name[:-1]}, padding not counted)"
        names.append(name)
        rest = rest[length:]
    return tuple(names)


def without_factor(primitive: str) -> str:
    """Return the name of a primitive without the constant that it multiplies by."""
    return primitive.partition(f" {FACTOR}")[0]


def _clamp_name(equation: Any, program: Any) -> str:
    """Return the name of `jax.numpy.clip`. With one bound, its program tells which."""
    values = [_literal(variable) for variable in equation.invars[1:]]
    kinds = {inner.primitive.name for inner in getattr(program, "eqns", ())}
    if len(values) == 1:
        values = [values[0], None] if "max" in kinds else [None, values[0]]
    low, high = values if len(values) == 2 else (None, None)
    return name_clamp(low, high)


def name_clamp(low: Any, high: Any) -> str:
    """Return the shared name of a function with these bounds. A float32 bound is written as short as possible."""
    low, high = (float(f"{value:.7g}") if isinstance(value, float) else value for value in (low, high))
    return {(0, None): "relu", (0, 6): "relu6"}.get((low, high), f"clamp({low}, {high})")


def _literal(variable: Any) -> Any:
    value: Any = getattr(variable, "val", None)  # only a literal has one
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]
