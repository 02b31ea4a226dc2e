"""Layers with recorded outputs, and their inputs and outputs in neutral layout."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from compare.base.names import Names
from torchbackend.only.memory_order import to_channels_first_rows, to_channels_last_rows
from torchbackend.only.modules import (
    find_module,
    is_always_channels_first,
    is_always_channels_last,
    is_channels_first,
)


@dataclass(frozen=True)
class RecordedLayer:
    """A layer with a recorded output.

    Attributes:
        module: the layer.
        flattened: the number of channels where the layer's input is flattened channels first, else None.
    """

    module: nn.Module
    flattened: int | None

    def to_neutral(self, activation: torch.Tensor, *, is_input: bool = False) -> torch.Tensor:
        """Return an output or input of the layer in neutral layout."""
        if is_input and self.flattened is not None:
            return to_channels_last_rows(activation, self.flattened, axis=-1)
        if is_channels_first(self.module, activation.shape):
            return activation.movedim(1, -1)
        return activation

    def run(self, inputs: torch.Tensor, *, training: bool) -> torch.Tensor:
        """Return the layer's neutral output for neutral inputs, and leave its buffers and mode unchanged."""
        module, buffers = self.module, {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        modes = {inner: inner.training for inner in module.modules()}
        if not training:
            module.eval()  # in training, layers that the model keeps in evaluation mode stay in it
        try:
            with torch.no_grad():
                return self.to_neutral(self._call(inputs))
        finally:
            for inner, mode in modes.items():
                inner.training = mode
            with torch.no_grad():
                for name, buffer in module.named_buffers():
                    buffer.copy_(buffers[name])

    def _call(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.flattened is not None:
            inputs = to_channels_first_rows(inputs, self.flattened, axis=-1)
        has_axes = inputs.ndim in (4, 5) or (inputs.ndim == 3 and is_always_channels_first(self.module))
        if not has_axes or is_always_channels_last(self.module):
            return self.module(inputs.clone())
        images = inputs.movedim(-1, 1).contiguous()
        if is_always_channels_first(self.module):
            return self.module(images)
        try:  # an unknown module shows by an error which axis holds its channels
            return self.module(images.clone())
        except RuntimeError:
            return self.module(inputs.clone())


def find_layers(model: nn.Module, table: Names) -> dict[str, RecordedLayer]:
    """Return the layers of a table by the names under which they are recorded."""
    flattened = {
        variable.own.rpartition(".")[0]: variable.flattened
        for variable in table.variables
        if variable.flattened is not None
    }
    return {
        name: RecordedLayer(find_module(model, path), flattened.get(path))
        for path, name in ((own.partition("#")[0], name) for own, name in table.layers.items())
    }


def to_neutral(layers: Mapping[str, RecordedLayer], activations: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the activations that `torchbackend.activations.record` collected in neutral layout."""
    arrays: dict[str, torch.Tensor] = {}
    for name, activation in activations.items():
        first_call = re.sub(r"#\d+", "", name)
        is_input = first_call not in layers
        arrays[name] = layers[first_call.removesuffix(".input")].to_neutral(activation, is_input=is_input)
    return arrays
