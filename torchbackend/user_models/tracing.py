"""One traced forward pass of a user's model: its layers in execution order, and the functions between them."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from compare.base.element_order import Bindings
from compare.base.errors import take_first_line
from compare.base.interface import Refused
from compare.base.names import join_path
from compare.base.task import Input, flatten_outputs
from compare.base.trace import Trace
from compare.base.workloads import ModelSpec
from compare.worker import factories
from torchbackend import precision
from torchbackend.only import functional_dropout
from torchbackend.only.call_flow import CallWatcher
from torchbackend.only.model_inputs import make_arguments, make_inputs, takes_by_name
from torchbackend.only.modules import find_torch_class, has_own_forward, neutral_shape, tensors
from torchbackend.roles import role
from torchbackend.user_models import build


def trace(spec: ModelSpec, batch_size: int) -> Trace:
    """Return the trace of a user's model in one training-mode pass over so many images, at float32.

    Raises:
        Refused: as `build`. The pass raises or draws random numbers. It never calls a layer, and reads its parameters
            in no known function. A layer or the model returns more than one tensor. The logits have another shape.
    """
    policy = precision.policy("float32", "cpu")
    built = build(spec, policy)
    model, reference = built.model, built.reference
    inputs = spec.inputs or (Input("", spec.image),)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    bindings, uncalled, place, images = Bindings(), frozenset[str](), "the model's forward", list[torch.Tensor]()
    try:
        while True:
            images = [
                values.requires_grad_().clone() if values.is_floating_point() else values  # models may change them
                for values in make_inputs(inputs, batch_size)
            ]
            functional_dropout.record_calls()
            arguments, options = make_arguments(inputs, images, by_name=takes_by_name(model, inputs), options={})
            watcher = CallWatcher(model, images, reference, bindings, uncalled)
            with policy.scope(), watcher.hooks(), watcher:
                try:
                    result = model(*arguments, **options)
                finally:
                    place = watcher.place
            before_pass, uncalled = uncalled, watcher.find_uncalled()
            if not bindings.new and uncalled == before_pass:
                break
            bindings = Bindings({**bindings.known, **bindings.new})
    except Refused:
        raise
    except (Exception, SystemExit) as error:
        raise Refused(
            f"{reference}: training on {_describe(inputs, images)} raised "
            f"{type(error).__name__} in {place}: {take_first_line(error)}{factories.find_raise(error)}"
            f"{factories.suggest_inputs(error) or _hint(inputs)}"
        ) from error
    outputs = _find_outputs(result, reference)
    logits = next(iter(outputs.values()))
    after, between = watcher.origin(logits)
    used, functions = watcher.find_used(), functional_dropout.list_calls()
    changed = {name for name, buffer in model.named_buffers() if not torch.equal(buffer, before[name])}
    return Trace(
        framework="torch",
        layers=watcher.list_layers(),
        output=neutral_shape(logits.shape) if logits.ndim == 4 else tuple(logits.shape),
        constants=(
            *spec.arguments.get("constants", ()),
            *(name for name in _list_buffers(model) if name not in changed),
        ),
        reused=watcher.find_reused(),
        outputs={name: tuple(output.shape) for name, output in outputs.items()},
        after=after,
        between=between,
        unused=tuple(name for name, _ in _named(model) if name not in used),
        dropout=(*built.dropout, *functions),
        source_sha256=factories.add_source(built.source_sha256, spec.arguments.get("losses", {}).get("torch")),
        notes=(*built.notes, *_note_constants(spec), *_note_tied(model), *_note_oddities(model), *watcher.notes()),
    )


def _named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every name of every variable that can cross."""
    for path, module in model.named_modules():
        for attribute, tensor, _ in tensors(module):
            yield join_path((path, attribute)), tensor


def _list_buffers(model: nn.Module) -> Iterator[str]:
    """Yield every name of a buffer that can cross."""
    for path, module in model.named_modules():
        yield from (join_path((path, attribute)) for attribute, _, is_parameter in tensors(module) if not is_parameter)


def _note_constants(spec: ModelSpec) -> list[str]:
    return [
        f"{name}, a buffer that never changes, stays as the factory makes it: flax has no such variable"
        for name in spec.arguments.get("constants", ())
    ]


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
        if role(module) != "parameters" and has_own_forward(module):
            base = find_torch_class(module).__name__
            notes.append(f"{path} is a {type(module).__name__}, and its forward is not that of torch's {base}")
    return notes


def _hint(inputs: Sequence[Input]) -> str:
    """Return what may be wrong with the shape of images that a model does not take."""
    shape = inputs[0].shape
    if len(shape) == 3 and shape[0] in (1, 3, 4) and shape[2] > 4:
        return f"; --input is height x width x channels: did you mean {shape[1]}x{shape[2]}x{shape[0]}?"
    if len(shape) == 3:
        return "; torch's model gets images [N, C, H, W], and flax's gets [N, H, W, C]"
    return ""


def _describe(inputs: Sequence[Input], values: Sequence[torch.Tensor]) -> str:
    shapes = [[len(value), *each.shape] for each, value in zip(inputs, values, strict=True)]
    named = [f"{each.name or 'images'} {shape}" for each, shape in zip(inputs, shapes, strict=True)]
    return ", ".join(named)


def _find_outputs(result: Any, reference: str) -> dict[str, torch.Tensor]:
    try:
        outputs = flatten_outputs(result, lambda value: isinstance(value, torch.Tensor))
    except Refused as error:
        raise Refused(f"{reference}: {error}") from error
    if not outputs:
        raise Refused(f"{reference}: the model returns no tensor; allowed: one tensor of logits, or several tensors")
    return outputs
