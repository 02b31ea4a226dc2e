"""Recognise a layer of the user's own class by what it does: the functions that it calls with its own variables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules import utils

from compare.base.trace import NORMS, PRODUCTS, Variable
from torchbackend.only.function_names import argument

_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
_STATISTICS = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
FORMS: Mapping[str, tuple[str, Sequence[str]]] = {
    **{f"conv{rank}d": ("convolution", _CONVOLUTION) for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d": ("transposed-convolution", _TRANSPOSED) for rank in (1, 2, 3)},
    "linear": ("dense", ("input", "weight", "bias")),
    "batch_norm": ("batch-norm", _STATISTICS),
    "instance_norm": ("group-norm", _STATISTICS),
    "layer_norm": ("layer-norm", ("input", "normalized_shape", "weight", "bias", "eps")),
    "group_norm": ("group-norm", ("input", "num_groups", "weight", "bias", "eps")),
}
_ROOTS = ("sqrt", "rsqrt", "pow")


@dataclass(frozen=True)
class Operation:
    """One function with parameters: the role of the layer that it is, its variables and its settings.

    It is not whole if it also adds a bias that the module computes. Such a bias is no part of the layer.
    """

    role: str
    variables: tuple[Variable, ...]
    settings: Mapping[str, Any]
    is_whole: bool = True


@dataclass
class Doings:
    """The functions that a module itself calls.

    Attributes:
        operations: those of layers, each with its place among all layers.
        uses: `scale` or `bias` by the name of a variable that multiplies or is added.
        reductions: the axes of each reduction: N for the batch, S for positions, C for channels.
        has_root: whether it takes a square root.
    """

    operations: list[tuple[int, Operation]] = field(default_factory=list)
    uses: dict[str, str] = field(default_factory=dict)
    reductions: list[frozenset[str]] = field(default_factory=list)
    has_root: bool = False

    def note(self, name: str, own: Sequence[str]) -> None:
        """Note a function by its plain name, and the module's own variables among its arguments."""
        use = {"mul": "scale", "multiply": "scale", "add": "bias", "radd": "bias", "rmul": "scale", "sub": "bias"}
        role = use.get(name) or use.get(name.removeprefix("i"))
        for variable in own if role else ():
            self.uses.setdefault(variable, role or "")
        self.has_root = self.has_root or name in _ROOTS

    def note_norm(self, name: str, args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Note a norm without parameters. The module scales its result itself."""
        axes = {"layer_norm": "C", "instance_norm": "S", "batch_norm": "NS"}.get(name)
        if name == "group_norm":
            axes = "SC" if argument(args, keywords, 1, "num_groups", None) == 1 else None
        if axes is not None:
            self.reductions.append(frozenset(axes))
            self.has_root = True

    def find_norm(self, variables: Sequence[Variable], channels: int) -> Operation | None:
        """Return the norm that a module computes by hand. Return None for other modules."""
        kinds = set(self.reductions)
        if len(kinds) != 1 or not self.has_root or not variables:
            return None
        axes = next(iter(kinds))
        used = [self.uses.get(each.own, "") for each in variables]
        if axes not in NORMS or sorted(used) not in (["bias", "scale"], ["scale"], ["bias"]):
            return None
        settings = {"groups": channels} if axes == frozenset("S") else {}
        named = tuple(
            Variable(each.own, use, tuple(size for size in each.shape if size != 1), each.is_parameter)
            for each, use in zip(variables, used, strict=True)
        )
        return Operation(NORMS[axes], named, settings)


def find_operation(
    name: str, args: Sequence[Any], keywords: Mapping[str, Any], own: Mapping[int, Variable]
) -> Operation | None:
    """Return the layer that a function computes with a module's `own` variables (by the tensor's id), if it is one."""
    if name not in FORMS:
        return None
    role, form = FORMS[name]
    given = {key: argument(args, keywords, place, key, None) for place, key in enumerate(form)}
    kinds = {"weight": "kernel" if role in PRODUCTS else "scale", "bias": "bias"}
    kinds |= {"running_mean": "mean", "running_var": "var"}
    variables, is_whole = list[Variable](), True
    for key in ("weight", "bias", "running_mean", "running_var"):
        tensor = given.get(key)
        if tensor is None:
            continue
        variable = own.get(id(tensor))
        if variable is None and key == "bias" and variables and role in PRODUCTS:
            is_whole = False
            continue
        if variable is None:
            return None
        axes = (*range(2, tensor.ndim), 1, 0) if kinds[key] == "kernel" else tuple(range(tensor.ndim))
        shape = tuple(tensor.shape[axis] for axis in axes)
        variables.append(Variable(variable.own, kinds[key], shape, variable.is_parameter, axes=axes))
    if not variables or not any(each.role in ("kernel", "scale", "bias") for each in variables):
        return None
    return Operation(role, tuple(variables), _settings(name, role, given), is_whole)


def _settings(name: str, role: str, given: Mapping[str, Any]) -> dict[str, Any]:
    if role == "dense":
        return {}
    if role in PRODUCTS:
        return _convolution_settings(role, given)
    epsilon = 1e-5 if given.get("eps") is None else float(given["eps"])
    if role == "layer-norm":
        return {"epsilon": epsilon, "fast_variance": False}
    if role == "group-norm":
        groups = given["input"].shape[1] if name == "instance_norm" else given["num_groups"]
        return {"groups": int(groups), "epsilon": epsilon, "fast_variance": False}
    settings: dict[str, Any] = {"epsilon": epsilon, "fast_variance": False}
    if given.get("running_mean") is not None:
        momentum = 0.1 if given.get("momentum") is None else float(given["momentum"])
        settings |= {"momentum": momentum, "running_variance": "unbiased"}
    return settings | {"statistics": "batch" if given.get("training") else "running"}


def _convolution_settings(role: str, given: Mapping[str, Any]) -> dict[str, Any]:
    kernel = list(given["weight"].shape[2:])
    spread = utils._ntuple(len(kernel))  # as torch's own layers do
    stride, dilation = list(spread(_or(given["stride"], 1))), list(spread(_or(given["dilation"], 1)))
    padding = _or(given["padding"], 0)
    if padding == "same":
        totals = [(size - 1) * apart for size, apart in zip(kernel, dilation, strict=True)]
        edges = [[total // 2, total - total // 2] for total in totals]
    else:
        edges = [[size, size] for size in spread(0 if padding == "valid" else padding)]
    settings = {
        "kernel": kernel,
        "stride": stride,
        "padding": edges,
        "dilation": dilation,
        "groups": _or(given["groups"], 1),
        "padding_mode": "zeros",
    }
    if role == "transposed-convolution":
        settings["output_padding"] = list(spread(_or(given["output_padding"], 0)))
    return settings


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def name_axes(order: Any, chosen: Sequence[int]) -> frozenset[str]:
    """Return which neutral axes a reduction takes: N for the batch, S for positions, C for channels."""
    neutral = order.axes()
    kinds = {
        axis: "N" if place == 0 else "C" if place == len(neutral) - 1 else "S" for place, axis in enumerate(neutral)
    }
    return frozenset(kinds[axis % len(neutral)] for axis in chosen)


def own_tensors(values: Sequence[torch.Tensor], own: Mapping[int, Variable]) -> list[str]:
    """Return the names of a module's own variables among tensors, views of them included."""
    names = list[str]()
    for tensor in values:
        base = tensor if tensor._base is None else tensor._base
        variable = own.get(id(tensor)) or own.get(id(base))
        if variable is not None:
            names.append(variable.own)
    return names
