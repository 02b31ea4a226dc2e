"""One training pass of a user's model, watched: its layers in execution order, and what lies between them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from compare.base.interface import Refused, first_line
from compare.base.trace import Trace
from compare.base.workloads import ModelSpec
from compare.worker import factories
from torchbackend import roles, user_models
from torchbackend.user_models.dataflow import Watch


def trace(spec: ModelSpec, batch_size: int) -> Trace:
    """Return what one training pass at float32 over that many random images says of a pair's torch model.

    Raises:
        Refused: as `own.build`; the pass raises, draws random numbers, or uses a layer's parameters without calling
            that layer; a layer or the model returns something else than one tensor; the logits' shape is another.
    """
    built, reference = user_models.build(spec), spec.arguments["torch"]
    model = built.model.to(torch.float32)
    height, width, channels = spec.image
    drawn = torch.randn(batch_size, channels, height, width, generator=torch.Generator().manual_seed(0))
    images = drawn.requires_grad_().clone()  # models may change it in place
    watch = Watch(model, images, reference)
    try:
        with watch.hooks(), watch:
            logits = model(images)
    except Refused:
        raise
    except (Exception, SystemExit) as error:
        raise Refused(
            f"{reference}: training on images [{batch_size}, {height}, {width}, {channels}] raised "
            f"{type(error).__name__} in {watch.place}: {first_line(error)}{factories.raised_at(error)}"
        ) from error
    _check(logits, spec, batch_size, reference)
    after, between = watch.origin(logits)
    reached = watch.reached()
    return Trace(
        framework="torch",
        layers=tuple(watch.layers),
        output=roles.images(logits.shape),
        after=after,
        between=between,
        unused=tuple(name for name, _ in _named(model) if name not in reached),
        dropout=built.dropout,
        source_sha256=built.source_sha256,
        notes=(*built.notes, *_tied(model), *_peculiar(model), *watch.notes()),
    )


def _named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every name of every variable that can cross."""
    for path, module in model.named_modules():
        for attribute, tensor, _ in roles.tensors(module):
            yield roles.joined(path, attribute), tensor


def _tied(model: nn.Module) -> list[str]:
    first = dict[int, str]()
    return [
        f"{name} is the same tensor as {first[id(tensor)]}"
        for name, tensor in _named(model)
        if first.setdefault(id(tensor), name) != name
    ]


def _peculiar(model: nn.Module) -> list[str]:
    """Return what is unusual about modules and variables, whichever way the pass goes."""
    notes = [
        f"{name} is not trained: requires_grad is off" for name, p in model.named_parameters() if not p.requires_grad
    ]
    for name, buffer in model.named_buffers():
        if not buffer.is_floating_point() and not name.endswith("num_batches_tracked"):
            notes.append(f"{name}, a buffer of {buffer.dtype}, stays as the factory makes it")
    for path, module in model.named_modules():
        base = next(each for each in type(module).__mro__ if each.__module__.startswith("torch.nn"))
        if roles.role(module) != "parameters" and type(module).forward is not base.forward:
            notes.append(f"{path} is a {type(module).__name__}, whose forward is not torch's own {base.__name__}'s")
    return notes


def _check(logits: Any, spec: ModelSpec, batch_size: int, reference: str) -> None:
    wanted = f"[{batch_size}, {spec.classes}], or with height and width after them"
    if not isinstance(logits, torch.Tensor):
        raise Refused(
            f"{reference}: the model returns a {type(logits).__name__}; allowed: one tensor of logits {wanted}"
        )
    if logits.ndim not in (2, 4) or tuple(logits.shape[:2]) != (batch_size, spec.classes):
        raise Refused(f"{reference}: the model returns {list(logits.shape)}; allowed: logits {wanted}")
