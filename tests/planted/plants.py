"""Ways to plant a bug in one side: a changed configuration, or a patched function of its backend."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from torch.nn import functional

import jaxbackend.gradients
import jaxbackend.layers
import jaxbackend.stems
import torchbackend.optim
from compare.base.interface import Arrays, Batch
from compare.data import weights
from compare.worker import recording
from tests.planted.probes import BATCH, CLASSES, Side

Plant = Callable[[Side], None]


def default(owner: type, name: str, value: Any) -> Plant:
    return lambda side: side.patch.setitem(vars(owner)["__init__"].__kwdefaults__, name, value)


def attribute(owner: Any, name: str, value: Any) -> Plant:
    return lambda side: side.patch.setattr(owner, name, value)


def rule(**changes: Any) -> Plant:
    return lambda side: side.optimizer(**changes)


def scale_images(side: Side) -> None:
    side.train = Batch(side.train.values() * np.float32(1.001), side.train.labels)


def batches(change: Callable[[list[Batch], Side], None]) -> Plant:
    real = recording.draw_epoch_batches

    def plant(side: Side) -> None:
        def changed(*arguments: Any, **options: Any) -> list[Batch]:
            batches = real(*arguments, **options)
            change(batches, side)
            return batches

        side.patch.setattr(recording, "draw_epoch_batches", changed)

    return plant


def keep_partial(batches: list[Batch], side: Side) -> None:
    batches.append(Batch(side.train.images[: BATCH // 2], side.train.labels[: BATCH // 2]))
    side.patch.setattr(Batch, "form", ())  # otherwise the session refuses it


def shuffle_label(batches: list[Batch], side: Side) -> None:
    batches[0].labels[0] = (batches[0].labels[0] + 1) % CLASSES


def move_buffer(side: Side) -> None:
    real = weights.randomise

    def changed(shapes: Any, seed: int) -> Arrays:
        arrays = real(shapes, seed)
        arrays["blocks.1.norm.var"][0] += 1e-6
        return arrays

    side.patch.setattr(weights, "randomise", changed)


def same_padding(side: Side) -> None:
    side.patch.setattr(jaxbackend.layers, "_sides", lambda padding: "SAME" if padding else [(0, 0)] * 2)
    side.patch.setattr(jaxbackend.stems, "AT_ONCE", 0)  # few channels are padded before they are convolved


def same_pooling(side: Side) -> None:
    def pool(x: Any, size: int, stride: int, _: int) -> Any:
        return nnx.max_pool(x, (size, size), (stride, stride), "SAME")

    side.patch.setattr(jaxbackend.gradients, "max_pool", pool)


def turned_kernel(side: Side) -> None:
    real = jaxbackend.gradients.conv_transpose

    def changed(x: Any, kernel: Any, stride: int, padding: int) -> Any:
        return real(x, kernel[::-1, ::-1], stride, padding)

    side.patch.setattr(jaxbackend.gradients, "conv_transpose", changed)


def one_sided_padding(side: Side) -> None:
    real = jaxbackend.gradients.conv_transpose

    def changed(x: Any, kernel: Any, stride: int, padding: int) -> Any:
        past = len(kernel) - 1 - padding  # of the enlarged input's two sides
        whole: Any = real(x, kernel, stride, padding)
        return jnp.pad(whole, ((0, 0), (0, past), (0, past), (0, 0)))[:, past:, past:]

    side.patch.setattr(jaxbackend.gradients, "conv_transpose", changed)


def near_edge(_: Any, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    rows, columns = (first.shape[axis] - second.shape[axis] for axis in (2, 3))
    return torch.cat([first, functional.pad(second, (columns, 0, rows, 0))], 1)


def shifted(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda first, count: function(first, count + 1)


def uneven_smoothing(labels: Any, alpha: float) -> Any:
    return labels * (1 - alpha) + (1 - labels) * alpha / (labels.shape[-1] - 1)


def fast_moments(wide: Any, **_: Any) -> Any:
    axes = tuple(range(wide.ndim - 1))
    mean = wide.mean(axes)
    return mean, jnp.square(wide).mean(axes) - jnp.square(mean)


def clip_by_value(optimizer: torch.optim.Optimizer, limit: float) -> None:
    for group in optimizer.param_groups:
        torch.nn.utils.clip_grad_value_(group["params"], limit)


def clip_before_unscaling(side: Side) -> None:
    limit = side.workload.optimizer.clip_norm or 0.0
    clip, unscale = torchbackend.optim.clip, torch.amp.GradScaler.unscale_

    def clipped(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        clip(optimizer, limit)
        unscale(scaler, optimizer)

    side.patch.setattr(torchbackend.optim, "clip", lambda optimizer, limit: None)
    side.patch.setattr(torch.amp.GradScaler, "unscale_", clipped)


def mean_over_images(logits: Any, labels: Any, smoothing: float) -> Any:
    return functional.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum") / len(labels)


def twice(logits: Any, labels: Any, smoothing: float) -> Any:
    return 2 * functional.cross_entropy(logits, labels, label_smoothing=smoothing)


def summed(logits: Any, labels: Any, smoothing: float) -> Any:
    return functional.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")


def timed_on_negatives(real: Callable[..., Any]) -> Callable[..., Any]:
    def step(self: Any, images: torch.Tensor, labels: torch.Tensor) -> Any:
        return real(self, -images if images.dtype == torch.float32 else images, labels)

    return step


def without_gradient(real: Callable[..., Any]) -> Callable[..., Any]:
    def inspected(self: Any, images: torch.Tensor, labels: torch.Tensor) -> Any:
        if self._policy.compute_dtype != torch.bfloat16:
            return real(self, images, labels)
        hook = dict(self.model.named_parameters())["blocks.1.conv.weight"].register_hook(torch.zeros_like)
        try:
            return real(self, images, labels)
        finally:
            hook.remove()

    return inspected
