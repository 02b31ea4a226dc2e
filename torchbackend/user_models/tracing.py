"""One traced forward pass of a user's model: its layers in execution order, and the functions between them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from compare.base.errors import take_first_line
from compare.base.interface import Refused
from compare.base.names import join_path
from compare.base.trace import Trace
from compare.base.workloads import ModelSpec
from compare.worker import factories
from torchbackend import precision
from torchbackend.only.call_flow import CallWatcher
from torchbackend.only.modules import neutral_shape, tensors
from torchbackend.roles import role
from torchbackend.user_models import build


def trace(spec: ModelSpec, batch_size: int) -> Trace:
    """Return the trace of a user's model in one training-mode pass over so many images, at float32.

    Raises:
        Refused: as `build`. The pass raises or draws random numbers. It uses a layer's parameters and never calls
            that layer. A layer or the model returns more than one tensor. The logits have another shape.
    """
    built = build(spec, precision.policy("float32", "cpu"))
    model, reference = built.model, built.reference
    height, width, channels = spec.image
    noise = torch.randn(batch_size, channels, height, width, generator=torch.Generator().manual_seed(0))
    images = noise.requires_grad_().clone()  # models may change it in place
    watcher = CallWatcher(model, images, reference)
    try:
        with watcher.hooks(), watcher:
            logits = model(images)
    except Refused:
        raise
    except (Exception, SystemExit) as error:
        raise Refused(
            f"{reference}: training on images [{batch_size}, {height}, {width}, {channels}] raised "
            f"{type(error).__name__} in {watcher.place}: {take_first_line(error)}{factories.find_raise(error)}"
        ) from error
    _check(logits, spec, batch_size, reference)
    after, between = watcher.origin(logits)
    used = watcher.find_used()
    return Trace(
        framework="torch",
        layers=tuple(watcher.layers),
        output=neutral_shape(logits.shape),
        after=after,
        between=between,
        unused=tuple(name for name, _ in _named(model) if name not in used),
        dropout=built.dropout,
        source_sha256=built.source_sha256,
        notes=(*built.notes, *_note_tied(model), *_note_oddities(model), *watcher.notes()),
    )


def _named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every name of every variable that can cross."""
    for path, module in model.named_modules():
        for attribute, tensor, _ in tensors(module):
            yield join_path((path, attribute)), tensor


def _note_tied(model: nn.Module) -> list[str]:
    first = dict[int, str]()
    return [
        f"{name} is the same tensor as {first[id(tensor)]}"
        for name, tensor in _named(model)
        if first.setdefault(id(tensor), name) != name
    ]


def _note_oddities(model: nn.Module) -> list[str]:
    """Return a note for each unusual module or variable, called or not."""
    notes = [
        f"{name} is not trained: requires_grad is off" for name, p in model.named_parameters() if not p.requires_grad
    ]
    for name, buffer in model.named_buffers():
        if not buffer.is_floating_point() and not name.endswith("num_batches_tracked"):
            notes.append(f"{name}, a buffer of {buffer.dtype}, stays as the factory makes it")
    for path, module in model.named_modules():
        base = next(kind for kind in type(module).__mro__ if kind.__module__.startswith("torch.nn"))
        if role(module) != "parameters" and type(module).forward is not base.forward:
            notes.append(f"{path} is a {type(module).__name__}, and its forward is not that of torch's {base.__name__}")
    return notes


def _check(logits: Any, spec: ModelSpec, batch_size: int, reference: str) -> None:
    wanted = f"[{batch_size}, {spec.classes}], or with height and width after them"
    if not isinstance(logits, torch.Tensor):
        raise Refused(
            f"{reference}: the model returns a {type(logits).__name__}; allowed: one tensor of logits {wanted}"
        )
    if logits.ndim not in (2, 4) or tuple(logits.shape[:2]) != (batch_size, spec.classes):
        raise Refused(f"{reference}: the model returns {list(logits.shape)}; allowed: logits {wanted}")
