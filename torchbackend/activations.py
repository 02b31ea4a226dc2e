"""Every layer's output by the layer's path, in execution order; a layer's second call in one pass is `PATH#2`."""

import re
from collections.abc import Collection, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from compare.base.names import Names
from torchbackend import layout, roles


@contextmanager
def recorded(
    model: nn.Module, layers: Mapping[str, str] | None = None, *, inputs: bool = False, copies: bool = False
) -> Generator[dict[str, torch.Tensor]]:
    """Collect what layers return while the context lasts; it is there at the end.

    Args:
        model: whatever is called within the context.
        layers: path in the model to the name under which its layer's output stands (None: all layers without
            sub-layers, by path).
        inputs: have also what each layer was given, before its output, as `NAME.input`, and copies of both: people's
            models change activations in place.
        copies: have copies of outputs, too. Of a compiled model in DistributedDataParallel each part, from bucket to
            bucket, is a program of its own, and torch 2.11 fails on one that returns a view and the same view detached.
    """
    chosen = layout.names(model).layers if layers is None else layers
    given, returned = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    found: dict[str, torch.Tensor] = {}

    def before(path: str) -> Any:
        def hook(_layer: nn.Module, arguments: Any, keywords: Any) -> None:
            given[unused(path, given)] = _first_tensor(arguments, keywords).detach().clone()

        return hook

    def after(path: str) -> Any:
        def hook(_layer: nn.Module, _inputs: Any, result: torch.Tensor) -> None:
            output = result.detach()
            returned[unused(path, returned)] = output.clone() if inputs or copies else output

        return hook

    with ExitStack() as stack:
        for path in dict.fromkeys(own.partition("#")[0] for own in chosen):
            module = roles.at(model, path)
            if inputs:
                stack.enter_context(module.register_forward_pre_hook(before(path), with_kwargs=True))
            stack.enter_context(module.register_forward_hook(after(path)))
        yield found
    for own, output in returned.items():
        path, mark, call = own.partition("#")
        name = chosen.get(own, f"{chosen.get(path, path)}{mark}{call}")
        if inputs:
            found[f"{name}.input"] = given[own]
        found[name] = output


def unused(path: str, outputs: Collection[str]) -> str:
    """Return the path, numbered if an earlier call has taken it."""
    if path not in outputs:
        return path
    calls = 1 + sum(name.partition("#")[0] == path for name in outputs)
    return f"{path}#{calls}"


def _first_tensor(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> torch.Tensor:
    """Return what a layer works on of all that it was called with."""
    return next(each for each in (*arguments, *keywords.values()) if isinstance(each, torch.Tensor))


@dataclass(frozen=True)
class Layer:
    """A layer that is recorded: its module, and the channels by which its input is flattened channels first, if so."""

    module: nn.Module
    flattened: int | None

    def neutral(self, activation: torch.Tensor, *, is_input: bool = False) -> torch.Tensor:
        """Return an output or input of the layer in neutral layout."""
        if is_input and self.flattened is not None:
            return layout.channels_last_rows(activation, self.flattened, axis=-1)
        if roles.is_channels_first(self.module, activation.shape):
            return activation.permute(0, 2, 3, 1)
        return activation

    def run_layer(self, inputs: torch.Tensor, *, training: bool) -> torch.Tensor:
        """Return the layer's output, neutral, for neutral inputs; neither buffers nor mode are changed."""
        module, kept = self.module, {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        modes = {each: each.training for each in module.modules()}
        if not training:
            module.eval()  # in training, the layers that the model then keeps in evaluation stay there
        try:
            with torch.no_grad():
                return self.neutral(self._called(inputs))
        finally:
            for each, mode in modes.items():
                each.training = mode
            with torch.no_grad():
                for name, buffer in module.named_buffers():
                    buffer.copy_(kept[name])

    def _called(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.flattened is not None:
            inputs = layout.channels_first_rows(inputs, self.flattened, axis=-1)
        if inputs.ndim != 4 or roles.always_channels_last(self.module):
            return self.module(inputs.clone())
        images = inputs.permute(0, 3, 1, 2).contiguous()
        if roles.always_channels_first(self.module):
            return self.module(images)
        try:  # an unknown module says by refusing which of its axes has its channels
            return self.module(images.clone())
        except RuntimeError:
            return self.module(inputs.clone())


def layers(model: nn.Module, table: Names) -> dict[str, Layer]:
    """Return the layers of a table by the names under which they are recorded."""
    flattened = {each.own.rpartition(".")[0]: each.flattened for each in table.variables if each.flattened is not None}
    places = {own: own.partition("#")[0] for own in table.layers}
    return {table.layers[own]: Layer(roles.at(model, path), flattened.get(path)) for own, path in places.items()}


def neutral(layers: Mapping[str, Layer], activations: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what `recorded` has collected in neutral layout."""
    found: dict[str, torch.Tensor] = {}
    for name, activation in activations.items():
        first_call = re.sub(r"#\d+", "", name)
        is_input = first_call not in layers
        found[name] = layers[first_call.removesuffix(".input")].neutral(activation, is_input=is_input)
    return found


def product(layers: Mapping[str, Layer], outputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the first convolution's output, else a dense layer's: the dtype and memory order of products show there.

    A kernel of one channel would have no telling memory order.
    """
    for role in ("convolution", "dense"):
        for name, output in outputs.items():
            if name in layers and roles.role(layers[name].module) == role:
                return output
    return next(iter(outputs.values()))
