"""How a setting is written in flax and in torch, as one would type it: the change that makes two layers equal."""

import re
from collections.abc import Sequence
from typing import Any, cast

from compare.base.trace import Layer

_FLAX = {"kernel": "kernel_size", "stride": "strides", "dilation": "kernel_dilation", "epsilon": "epsilon"}
_TORCH = {"kernel": "kernel_size", "epsilon": "eps"}
_FLAX_MODES = {"circular": 'padding="CIRCULAR"', "reflect": 'padding="REFLECT"'}


def in_flax(setting: str, torch: Layer) -> str | None:
    """Return what gives a flax layer the setting that torch's has, None where flax cannot have it."""
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
            return None if value is None else f"momentum={number(1 - value)}"
        case "statistics":
            return f"use_running_average={value == 'running'}"
        case "fast_variance":
            return f"use_fast_variance={value}"
        case "running_variance":
            return None
        case _:
            return f"{_FLAX.get(setting, setting)}={plain(value)}"


def in_torch(setting: str, jax: Layer) -> str | None:
    """Return what gives a torch layer the setting that flax's has, None where torch cannot have it."""
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
            return f"{_TORCH.get(setting, setting)}={number(value)}"
        case _:
            return f"{_TORCH.get(setting, setting)}={_short(value)}"


def number(value: Any) -> str:
    """Return a number as it is typed: `0.9`, `1e-5`."""
    if not isinstance(value, float):
        return str(value)
    return re.sub(r"e([+-])0+", r"e\1", f"{round(value, 12):.9g}")


def plain(value: Any) -> str:
    """Return a setting as Python writes it, sequences as tuples."""
    if isinstance(value, (list, tuple)):
        values = cast("Sequence[Any]", value)
        return _pairs(values) if any(isinstance(each, (list, tuple)) for each in values) else _tuple(values)
    return number(value)


def function_in_flax(word: str) -> str:
    """Return the flax code of a function that the traces have a word for."""
    pool = pooling(word)
    if pool:
        kind, kernel, stride, padding = pool
        name = "max_pool" if kind == "max" else "avg_pool"
        return f"nn.{name}(x, {_tuple(kernel)}, strides={_tuple(stride)}, padding={_pairs(padding)})"
    if word.startswith("gelu"):
        return f"nn.gelu(x, approximate={word == 'gelu(tanh)'})"
    return f"{_IN_FLAX.get(word, f'nn.{_plain_name(word)}')}(x{_MORE.get(word, '')})"


def function_in_torch(word: str) -> str:
    """Return the torch code of a function that the traces have a word for."""
    pool = pooling(word)
    if pool:
        kind, kernel, stride, padding = pool
        name = "MaxPool2d" if kind == "max" else "AvgPool2d"
        if all(first == last for first, last in padding):
            return f"nn.{name}({_short(kernel)}, stride={_short(stride)}, {_torch_padding(padding)})"
        fill = ', value=float("-inf")' if kind == "max" else ""
        return f"nn.{name}({_short(kernel)}, stride={_short(stride)}) of {_padded(padding, fill)}"
    if word.startswith("gelu"):
        return f'F.gelu(x, approximate="{"tanh" if word == "gelu(tanh)" else "none"}")'
    return f"F.{_plain_name(word)}(x{_MORE.get(word, '')})"


def _plain_name(word: str) -> str:
    return word.replace("-", "_")


# Functions that flax calls otherwise, and arguments that the traces do not tell and both must be given.
_IN_FLAX = {
    "mish": "jax.nn.mish",
    "hardswish": "nn.hard_swish",
    "hardsigmoid": "nn.hard_sigmoid",
    "hardtanh": "nn.hard_tanh",
    "logsigmoid": "nn.log_sigmoid",
}
_MORE = {"leaky-relu": ", SLOPE", "elu": ", ALPHA", "celu": ", ALPHA", "softmax": ", AXIS", "log_softmax": ", AXIS"}


Pool = tuple[str, list[int], list[int], list[list[int]]]


def pooling(word: str) -> Pool | None:
    """Return kind, kernel, stride and padding of a pool over images, None for another word."""
    kind, is_pool, rest = word.partition("-pool(")
    sizes = [int(each) for each in re.findall(r"\d+", rest)]
    if not is_pool or kind not in ("max", "average") or len(sizes) not in (6, 8):
        return None
    edges = sizes[4:] if len(sizes) == 8 else [each for each in sizes[4:] for _ in range(2)]
    return kind, sizes[:2], sizes[2:4], [edges[:2], edges[2:]]


def _flax_padding(torch: Layer) -> Sequence[Sequence[int]]:
    """Return flax's padding; of a transposed convolution, the edges of the image that it spreads out."""
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
    edges = ", ".join(str(edge) for sides in reversed(padding) for edge in sides)  # torch's begin with the last axis
    return f"F.pad(x, ({edges}){fill})"


def _pairs(values: Sequence[Any]) -> str:
    return _tuple([_tuple(each) for each in values])


def _tuple(values: Sequence[Any]) -> str:
    inner = ", ".join(map(str, values))
    return f"({inner},)" if len(values) == 1 else f"({inner})"


def _short(value: Any) -> str:
    """Return one number for equal ones, as torch lets one write."""
    if isinstance(value, (list, tuple)):
        values = cast("Sequence[Any]", value)
        return str(values[0]) if len(set(values)) == 1 else _tuple(values)
    return str(value)
