"""Write a setting or a function as flax or torch code, for suggestions that make two layers equal."""

import re
from collections.abc import Sequence
from typing import Any, cast

from compare.base.trace import Layer

_FLAX_SETTINGS = {"kernel": "kernel_size", "stride": "strides", "dilation": "kernel_dilation", "epsilon": "epsilon"}
_TORCH_SETTINGS = {"kernel": "kernel_size", "epsilon": "eps"}
_FLAX_MODES = {"circular": 'padding="CIRCULAR"', "reflect": 'padding="REFLECT"'}


_NOT_COUNTED = "padding not counted"


def write_in_flax(setting: str, torch: Layer) -> str | None:
    """Return the flax code that sets torch's value, None if flax cannot have it."""
    value = torch.settings[setting]
    match setting:
        case "padding" | "output_padding":
            return f"padding={_pairs(_flax_padding(torch))}"
        case "padding_mode":
            explicit = f"padding={_pairs(_flax_padding(torch))}"
            return explicit if value == "zeros" else _FLAX_MODES.get(value)
        case "groups":
            return f"{'num_groups' if torch.role == 'group-norm' else 'feature_group_count'}={value}"
        case "momentum":
            return None if value is None else f"momentum={format_number(1 - value)}"
        case "statistics":
            return f"use_running_average={value == 'running'}"
        case "fast_variance":
            return f"use_fast_variance={value}"
        case "running_variance":
            return None
        case _:
            return f"{_FLAX_SETTINGS.get(setting, setting)}={format_value(value)}"


def write_in_torch(setting: str, jax: Layer) -> str | None:
    """Return the torch code that sets flax's value, None if torch cannot have it."""
    value = jax.settings[setting]
    match setting:
        case "padding":
            return _torch_padding(value, is_transposed=jax.role == "transposed-convolution")
        case "padding_mode":
            return f'padding_mode="{value}"'
        case "groups":
            return f"{'num_groups' if jax.role == 'group-norm' else 'groups'}={value}"
        case "statistics":
            return "eval() on this layer" if value == "running" else "train() on this layer"
        case "fast_variance" | "running_variance":
            return None
        case "momentum" | "epsilon":
            return f"{_TORCH_SETTINGS.get(setting, setting)}={format_number(value)}"
        case _:
            return f"{_TORCH_SETTINGS.get(setting, setting)}={_short(value)}"


def format_number(value: Any) -> str:
    """Return a number in its shortest form: `0.9`, `1e-5`."""
    if not isinstance(value, float):
        return str(value)
    return re.sub(r"e([+-])0+", r"e\1", f"{round(value, 12):.9g}")


def format_value(value: Any) -> str:
    """Return a setting as Python code, sequences as tuples."""
    if isinstance(value, (list, tuple)):
        values = cast("Sequence[Any]", value)
        return _pairs(values) if any(isinstance(item, (list, tuple)) for item in values) else _join(values)
    return format_number(value)


def write_function_in_flax(word: str) -> str:
    """Return the flax code of a traced function (`Layer.between`)."""
    pool = parse_pool(word)
    if pool:
        kind, kernel, stride, padding = pool
        name = "max_pool" if kind == "max" else "avg_pool"
        counted = ", count_include_pad=False" if _NOT_COUNTED in word else ""
        return f"nn.{name}(x, {_join(kernel)}, strides={_join(stride)}, padding={_pairs(padding)}{counted})"
    if word.startswith("gelu"):
        return f"nn.gelu(x, approximate={word == 'gelu(tanh)'})"
    return f"{_FLAX_NAMES.get(word, f'nn.{_plain_name(word)}')}(x{_ARGUMENTS.get(word, '')})"


def write_function_in_torch(word: str) -> str:
    """Return the torch code of a traced function (`Layer.between`)."""
    pool = parse_pool(word)
    if pool:
        kind, kernel, stride, padding = pool
        name = "MaxPool2d" if kind == "max" else "AvgPool2d"
        if all(first == last for first, last in padding):
            counted = ", count_include_pad=False" if _NOT_COUNTED in word else ""
            return f"nn.{name}({_short(kernel)}, stride={_short(stride)}, {_torch_padding(padding)}{counted})"
        fill = ', value=float("-inf")' if kind == "max" else ""
        return f"nn.{name}({_short(kernel)}, stride={_short(stride)}) of {_padded(padding, fill)}"
    if word.startswith("gelu"):
        return f'F.gelu(x, approximate="{"tanh" if word == "gelu(tanh)" else "none"}")'
    return f"F.{_plain_name(word)}(x{_ARGUMENTS.get(word, '')})"


def _plain_name(word: str) -> str:
    return word.replace("-", "_")


# Functions with another name in flax, and arguments that both frameworks need but a trace does not hold.
_FLAX_NAMES = {
    "mish": "jax.nn.mish",
    "hardswish": "nn.hard_swish",
    "hardsigmoid": "nn.hard_sigmoid",
    "hardtanh": "nn.hard_tanh",
    "logsigmoid": "nn.log_sigmoid",
}
_ARGUMENTS = {
    "leaky-relu": ", SLOPE",
    "elu": ", ALPHA",
    "celu": ", ALPHA",
    "softmax": ", AXIS",
    "log_softmax": ", AXIS",
}


Pool = tuple[str, list[int], list[int], list[list[int]]]


def parse_pool(word: str) -> Pool | None:
    """Return kind, kernel, stride and padding of an image pool, None for another function."""
    kind, is_pool, sizes_text = word.partition("-pool(")
    sizes = [int(each) for each in re.findall(r"\d+", sizes_text)]
    if not is_pool or kind not in ("max", "average") or len(sizes) not in (6, 8):
        return None
    edges = sizes[4:] if len(sizes) == 8 else [each for each in sizes[4:] for _ in range(2)]
    return kind, sizes[:2], sizes[2:4], [edges[:2], edges[2:]]


def _flax_padding(torch: Layer) -> Sequence[Sequence[int]]:
    """Return flax's padding. Flax pads the spread-out image of a transposed convolution, torch crops its output."""
    padding = torch.settings["padding"]
    if torch.role != "transposed-convolution":
        return padding
    kernel, dilation = torch.settings["kernel"], torch.settings.get("dilation", (1, 1))
    added = torch.settings.get("output_padding", (0, 0))
    reach = [(size - 1) * apart for size, apart in zip(kernel, dilation, strict=True)]
    return [[size - first, size - last + more] for size, (first, last), more in zip(reach, padding, added, strict=True)]


def _torch_padding(padding: Sequence[Sequence[int]], *, is_transposed: bool = False) -> str:
    if all(first == last for first, last in padding):
        return f"padding={_short([first for first, _ in padding])}"
    if is_transposed:
        return f"padding=0 and the output cut by {_pairs(padding)}"
    return f"padding=0 and {_padded(padding)} before it"


def _padded(padding: Sequence[Sequence[int]], fill: str = "") -> str:
    edges = ", ".join(str(edge) for sides in reversed(padding) for edge in sides)  # F.pad begins with the last axis
    return f"F.pad(x, ({edges}){fill})"


def _pairs(values: Sequence[Any]) -> str:
    return _join([_join(each) for each in values])


def _join(values: Sequence[Any]) -> str:
    inner = ", ".join(map(str, values))
    return f"({inner},)" if len(values) == 1 else f"({inner})"


def _short(value: Any) -> str:
    """Return one number if all are equal, as torch accepts it."""
    if isinstance(value, (list, tuple)):
        values = cast("Sequence[Any]", value)
        return str(values[0]) if len(set(values)) == 1 else _join(values)
    return str(value)
