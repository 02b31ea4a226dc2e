"""What kind of layer a flax module is, what its variables mean, and its settings in torch's conventions.

Both twins and users' models are read by these rules.

Torch's `padding` of a transposed convolution is what the convolution that it transposes is padded by; its momentum is
the weight of the new batch, which is 1 - momentum in flax.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from flax import linen, nnx

from jaxbackend import layers

_Settings = dict[str, Any]

# Linen's classes and nnx's; the twins' own layers derive from nnx's but for their norms.
_KINDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("convolution", (linen.Conv, nnx.Conv)),
    ("transposed-convolution", (linen.ConvTranspose, nnx.ConvTranspose)),
    ("dense", (linen.Dense, nnx.Linear)),
    ("batch-norm", (linen.BatchNorm, nnx.BatchNorm, layers.BatchNorm)),
    ("layer-norm", (linen.LayerNorm, nnx.LayerNorm, layers.LayerNorm)),
    ("group-norm", (linen.GroupNorm, nnx.GroupNorm, linen.InstanceNorm, nnx.InstanceNorm)),
    ("embedding", (linen.Embed, nnx.Embed)),
)

ROOT = "(model)"
"""Path of the model itself, where it holds parameters of its own."""

PRODUCTS = ("convolution", "transposed-convolution", "dense")
"""Roles of layers that compute in the compute dtype."""

ORDER = ("kernel", "embedding", "scale", "bias", "mean", "var")
"""In which order a layer's variables stand."""


def role(module: Any) -> str:
    """Return one of `compare.base.trace.ROLES`."""
    return next((name for name, kinds in _KINDS if isinstance(module, kinds)), "parameters")


def variable(module: Any, kind: str, attribute: str, shape: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """Return role and neutral shape of the variable that a layer of this kind has under that name."""
    shape = tuple(shape)
    if turned(module, attribute):
        return attribute, (*shape[:2], shape[3], shape[2])
    if kind != "parameters":
        return attribute, shape
    long = tuple(length for length in shape if length != 1)
    return ("gamma", long) if len(long) <= 1 else ("free", shape)


def turned(module: Any, attribute: Any) -> bool:
    """Tell whether a variable is the kernel of a transposed convolution, turned round against the neutral one."""
    return role(module) == "transposed-convolution" and attribute == "kernel" and not module.transpose_kernel


def settings(module: Any, kind: str, convolution: Mapping[str, Any] | None, call: Mapping[str, Any]) -> _Settings:
    """Return what decides the arithmetic of a module that acts as this kind of layer, as `compare.base.trace` does.

    `convolution` has the parameters of XLA's convolution (`jax.lax.conv_general_dilated`) that the layer came out as,
    and `kernel`, its height and width; `call` the layer's arguments by name.
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


def written(module: Any) -> _Settings:
    """Return the settings that the user wrote in another way than `settings` has them."""
    kind = role(module)
    if kind == "transposed-convolution" or (kind == "convolution" and isinstance(module.padding, str)):
        return {"padding": _plain(module.padding)}
    if kind == "batch-norm" and not isinstance(module, layers.BatchNorm):
        return {"momentum": float(module.momentum)}
    return {}


def arguments(module: Any, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a module's call by name."""
    try:
        return dict(inspect.signature(type(module).__call__).bind(module, *inputs, **options).arguments)
    except TypeError:  # the layer stands wrapped, and its wrapper takes what the layer does not name
        return dict(options)


def _convolution(module: Any, convolution: Mapping[str, Any]) -> _Settings:
    found: _Settings = {
        "kernel": list(convolution["kernel"]),
        "stride": list(convolution["window_strides"]),
        "dilation": list(convolution["rhs_dilation"]),
        "padding": [list(sides) for sides in convolution["padding"]],
        "padding_mode": "zeros",
        "groups": convolution["feature_group_count"],
    }
    padding = getattr(module, "padding", None)  # a convolution that the user wrote may have none
    if padding in ("CIRCULAR", "REFLECT"):  # padded before the convolution, as flax does
        reach = [(size - 1) * apart + 1 for size, apart in zip(found["kernel"], found["dilation"], strict=True)]
        found["padding"] = [[(size - 1) // 2, size // 2] for size in reach]
        found["padding_mode"] = padding.lower()
    return found


def _transposed(module: Any, convolution: Mapping[str, Any]) -> _Settings:
    dilation = list(convolution["rhs_dilation"])
    reach = [(size - 1) * apart for size, apart in zip(convolution["kernel"], dilation, strict=True)]
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


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, (tuple, list)) else value


def _batch_norm(module: Any, call: Mapping[str, Any]) -> _Settings:
    running = call.get("use_running_average")
    running = module.use_running_average if running is None else running
    own = isinstance(module, layers.BatchNorm)
    return {
        "epsilon": float(module.epsilon),
        # 1 - 0.9 is not the 0.1 that torch's users write.
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
    features = next(each.shape[-1] for each in call.values() if hasattr(each, "shape"))
    return features // size if size else features  # instance norm: a group a channel
