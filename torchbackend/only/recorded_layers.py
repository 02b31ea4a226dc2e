"""Layers with recorded outputs, and their inputs and outputs in neutral layout."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from compare.base.names import Names
from compare.base.trace import AS_IT_IS, Layout
from torchbackend.only.memory_order import bring_from_neutral, bring_to_neutral
from torchbackend.only.modules import (
    find_module,
    is_always_channels_first,
    is_always_channels_last,
    is_channels_first,
)
from torchbackend.only.operations import find_kernel
from torchbackend.roles import ROOT


@dataclass(frozen=True)
class RecordedLayer:
    """A layer with a recorded output.

    Attributes:
        module: the layer.
        input_layout, output_layout: how its input and output come into the neutral order.
    """

    module: nn.Module
    input_layout: Layout = AS_IT_IS
    output_layout: Layout = AS_IT_IS

    def to_neutral(self, activation: torch.Tensor, *, is_input: bool = False) -> torch.Tensor:
        """Return an output or input of the layer in neutral layout."""
        layout = self.input_layout if is_input else self.output_layout
        if not layout.axes and is_channels_first(self.module, activation.shape):
            return activation.movedim(1, -1)
        return bring_to_neutral(activation, layout)

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
        inputs = bring_from_neutral(inputs, self.input_layout)
        if self.input_layout.axes:
            return self.module(inputs.contiguous())
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
    return {
        name: RecordedLayer(_find_holder(model, path), *table.layouts.get(path, ()))
        for path, name in ((own.partition("#")[0], name) for own, name in table.layers.items())
    }


def _find_holder(model: nn.Module, path: str) -> nn.Module:
    """Return the module at a path, or the module that holds the parameter there."""
    return find_module(model, path if find_kernel(model, path) is None else path.rpartition(".")[0] or ROOT)


def to_neutral(layers: Mapping[str, RecordedLayer], activations: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the activations that `torchbackend.activations.record` collected in neutral layout."""
    arrays: dict[str, torch.Tensor] = {}
    for name, activation in activations.items():
        first_call = re.sub(r"#\d+", "", name)
        is_input = first_call not in layers
        arrays[name] = layers[first_call.removesuffix(".input")].to_neutral(activation, is_input=is_input)
    return arrays
