"""What kind of layer a flax module is, the roles of its variables, and the settings of its arithmetic.

These rules read both twins and users' models. Settings follow torch's conventions. A transposed convolution's `padding`
is that of the convolution that it transposes. `momentum` is the weight of the new batch, which is 1 - momentum in flax.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flax import linen, nnx

from compare.base.trace import VARIABLES
from jaxbackend import layers

_Settings = dict[str, Any]

# Linen's classes and nnx's. The twins' own layers derive from nnx's, except for their norms.
_KINDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("convolution", (linen.Conv, nnx.Conv)),
    ("transposed-convolution", (linen.ConvTranspose, nnx.ConvTranspose)),
    ("dense", (linen.Dense, nnx.Linear, linen.DenseGeneral, nnx.LinearGeneral)),
    ("batch-norm", (linen.BatchNorm, nnx.BatchNorm, layers.BatchNorm)),
    ("layer-norm", (linen.LayerNorm, nnx.LayerNorm, layers.LayerNorm)),
    ("group-norm", (linen.GroupNorm, nnx.GroupNorm, linen.InstanceNorm, nnx.InstanceNorm)),
    ("embedding", (linen.Embed, nnx.Embed)),
)

ROOT = "(model)"
"""Path of the model itself, where it holds parameters of its own."""


def role(module: Any) -> str:
    """Return one of `compare.base.trace.ROLES`."""
    if getattr(module, "batch_dims", ()) or getattr(module, "batch_axis", ()):
        return "parameters"  # a dense layer with a kernel for each place of an axis
    return next((name for name, kinds in _KINDS if isinstance(module, kinds)), "parameters")


def variable(module: Any, kind: str, attribute: str, shape: Sequence[int]) -> tuple[str, tuple[int, ...], bool]:
    """Return role and neutral shape of a variable in a layer of this kind, and whether it is turned round.

    A transposed convolution's kernel is turned against the neutral kernel, unless the layer transposes it.
    """
    shape = tuple(shape)
    if isinstance(module, (linen.DenseGeneral, nnx.LinearGeneral)):
        made = _count_features(module)
        sizes = shape if attribute == "bias" else (math.prod(shape[: len(shape) - made]), *shape[len(shape) - made :])
        return attribute, (*sizes[: len(sizes) - made], math.prod(sizes[len(sizes) - made :])), False
    if role(module) == "transposed-convolution" and attribute == "kernel" and not module.transpose_kernel:
        return attribute, (*shape[:-2], shape[-1], shape[-2]), True
    if kind != "parameters" and attribute in VARIABLES:
        return attribute, shape, False
    longer = tuple(size for size in shape if size != 1)
    return ("gamma", longer, False) if len(longer) <= 1 else ("free", shape, False)


def is_flat(module: Any) -> bool:
    """Tell whether a layer's input and output have their features on one axis, as torch's have."""
    if not isinstance(module, (linen.DenseGeneral, nnx.LinearGeneral)):
        return True
    axes = module.axis
    return _count_features(module) == 1 and (isinstance(axes, int) or len(axes) == 1)


def _count_features(module: Any) -> int:
    features = module.features if isinstance(module, linen.DenseGeneral) else module.out_features
    return 1 if isinstance(features, int) else len(features)


def settings(module: Any, kind: str, convolution: Mapping[str, Any] | None, call: Mapping[str, Any]) -> _Settings:
    """Return the settings of a module's arithmetic by the names of `compare.base.trace`.

    Args:
        module: the module.
        kind: the kind of layer as which it acts.
        convolution: parameters of its convolution in the traced program (`jax.lax.conv_general_dilated`), and
            `kernel`, its height and width.
        call: the arguments of the module's call, by name.
    """
    if kind == "convolution" and convolution is not None:
        return _convolution(module, convolution)
    if kind == "transposed-convolution" and convolution is not None:
        return _transposed(module, convolution)
    if kind == "batch-norm":
        return _batch_norm(module, call)
    if kind == "layer-norm":
        return _norm(module)
    if kind == "group-norm":
        return _norm(module) | {"groups": _groups(module, call)}
    return {}


def read_as_written(module: Any) -> _Settings:
    """Return the settings that the user has written in another way than `settings` returns them."""
    kind = role(module)
    if kind == "transposed-convolution" or (kind == "convolution" and isinstance(module.padding, str)):
        return {"padding": _to_list(module.padding)}
    if kind == "batch-norm" and not isinstance(module, layers.BatchNorm):
        return {"momentum": float(module.momentum)}
    return {}


def _convolution(module: Any, convolution: Mapping[str, Any]) -> _Settings:
    settings: _Settings = {
        "kernel": list(convolution["kernel"]),
        "stride": list(convolution["window_strides"]),
        "dilation": list(convolution["rhs_dilation"]),
        "padding": [list(sides) for sides in convolution["padding"]],
        "padding_mode": "zeros",
        "groups": convolution["feature_group_count"],
    }
    padding = getattr(module, "padding", None)  # a user's own convolution may have none
    if padding in ("CIRCULAR", "REFLECT"):  # padded before the convolution, as flax does
        reach = [
            (size - 1) * dilation + 1 for size, dilation in zip(settings["kernel"], settings["dilation"], strict=True)
        ]
        settings["padding"] = [[(size - 1) // 2, size // 2] for size in reach]
        settings["padding_mode"] = padding.lower()
    return settings


def _transposed(module: Any, convolution: Mapping[str, Any]) -> _Settings:
    dilation = list(convolution["rhs_dilation"])
    reach = [(size - 1) * dilation for size, dilation in zip(convolution["kernel"], dilation, strict=True)]
    near = [size - sides[0] for size, sides in zip(reach, convolution["padding"], strict=True)]
    far = [size - sides[1] for size, sides in zip(reach, convolution["padding"], strict=True)]
    added = [max(0, first - last) for first, last in zip(near, far, strict=True)]
    return {
        "kernel": list(convolution["kernel"]),
        "stride": list(convolution["lhs_dilation"]),
        "dilation": dilation,
        "padding": [[first, last + more] for first, last, more in zip(near, far, added, strict=True)],
        "padding_mode": "zeros" if module.padding != "CIRCULAR" else "circular",
        "groups": convolution["feature_group_count"],
        "output_padding": added,
    }


def _to_list(value: Any) -> Any:
    return [_to_list(item) for item in value] if isinstance(value, (tuple, list)) else value


def _batch_norm(module: Any, call: Mapping[str, Any]) -> _Settings:
    running = call.get("use_running_average")
    running = module.use_running_average if running is None else running
    own = isinstance(module, layers.BatchNorm)
    return {
        "epsilon": float(module.epsilon),
        # In float64, 1 - 0.9 is not torch's 0.1.
        "momentum": float(module.momentum) if own else round(1 - float(module.momentum), 12),
        "running_variance": "unbiased" if own else "biased",
        "statistics": "running" if running else "batch",
        "fast_variance": False if own else bool(module.use_fast_variance),
    }


def _norm(module: Any) -> _Settings:
    return {
        "epsilon": float(module.epsilon),
        "fast_variance": bool(getattr(module, "use_fast_variance", False)),
    }


def _groups(module: Any, call: Mapping[str, Any]) -> int:
    groups, size = getattr(module, "num_groups", None), getattr(module, "group_size", None)
    if isinstance(groups, int) and not (isinstance(module, linen.GroupNorm) and size is not None):
        return groups
    features = next(value.shape[-1] for value in call.values() if hasattr(value, "shape"))
    return features // size if size else features  # instance norm: one group a channel
