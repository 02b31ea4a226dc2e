"""One layer in torch, made only from its neutral variables and settings."""

import numpy as np
import torch
from torch.nn import functional

from compare.base.interface import Array, Arrays
from compare.base.trace import Layer


def run(layer: Layer, variables: Arrays, inputs: Array, training: bool) -> Array:
    """Return the layer's output in neutral layout and float64."""
    x = torch.from_numpy(np.array(inputs, np.float64))
    if x.ndim == 4:
        x = x.permute(0, 3, 1, 2)
    values = {name: torch.from_numpy(array) for name, array in variables.items()}
    y = _ROLES[layer.role](layer.settings, values, x, training)
    return (y.permute(0, 2, 3, 1) if y.ndim == 4 else y).numpy()


def _convolution(settings, values, x, training):
    (top, bottom), (left, right) = settings["padding"]
    mode = "constant" if settings["padding_mode"] == "zeros" else settings["padding_mode"]
    padded = functional.pad(x, (left, right, top, bottom), mode=mode)
    kernel = values["kernel"].permute(3, 2, 0, 1)
    assert list(kernel.shape[2:]) == settings["kernel"]
    return functional.conv2d(
        padded,
        kernel,
        values.get("bias"),
        stride=settings["stride"],
        dilation=settings["dilation"],
        groups=settings["groups"],
    )


def _transposed(settings, values, x, training):
    (top, bottom), (left, right) = settings["padding"]
    rows, columns = settings["output_padding"]
    whole = functional.conv_transpose2d(
        x, values["kernel"].permute(3, 2, 0, 1), None, stride=settings["stride"], dilation=settings["dilation"]
    )
    cropped = functional.pad(whole, (-left, columns - right, -top, rows - bottom))
    return cropped + values["bias"][:, None, None] if "bias" in values else cropped


def _dense(settings, values, x, training):
    return functional.linear(x, values["kernel"].T, values.get("bias"))


def _batch_norm(settings, values, x, training):
    mean, var = (values[name].clone() for name in ("mean", "var"))
    return functional.batch_norm(x, mean, var, values["scale"], values["bias"], training, eps=settings["epsilon"])


def _layer_norm(settings, values, x, training):
    return functional.layer_norm(x, values["scale"].shape, values["scale"], values["bias"], settings["epsilon"])


def _group_norm(settings, values, x, training):
    return functional.group_norm(x, settings["groups"], values["scale"], values["bias"], settings["epsilon"])


_ROLES = {
    "convolution": _convolution,
    "transposed-convolution": _transposed,
    "dense": _dense,
    "batch-norm": _batch_norm,
    "layer-norm": _layer_norm,
    "group-norm": _group_norm,
}
