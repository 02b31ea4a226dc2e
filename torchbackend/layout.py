"""Names and memory order: between torch's tensors and the neutral arrays of the shared interface.

What a variable is called stands in a table (`compare.base.names`): a twin's is made here from its own attributes, a
user's model is given one. What has which axes is `torchbackend.roles`'.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from compare.base.interface import Arrays
from compare.base.names import Crossing, Names
from torchbackend import roles

_LARGE = 2**22
"""Elements of a tensor that is large."""


@dataclass(frozen=True)
class Leaf:
    """One parameter or buffer: neutral name and shape, torch's tensor, and how that comes into neutral order.

    `axes` is the order of its axes. Rows of `flattened` channels, one after the other ([C, HW]), become [HW, C].
    """

    name: str
    tensor: torch.Tensor
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    flattened: int | None
    is_parameter: bool

    def neutral(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor that is shaped like this one in neutral layout."""
        ordered = tensor.permute(self.axes)
        if self.flattened is not None:
            ordered = channels_last_rows(ordered, self.flattened, axis=0)
        return ordered.reshape(self.shape)

    def assign(self, value: torch.Tensor) -> None:
        """Set the tensor in place from a value in neutral layout, cast to its own dtype."""
        ordered = self.tensor.permute(self.axes)
        if self.flattened is not None:
            value = channels_first_rows(value, self.flattened, axis=0)
        ordered.copy_(value.reshape(ordered.shape))


def names(model: nn.Module) -> Names:
    """Return a twin's table: every parameter and buffer in the order in which it declares them, and every layer."""
    variables: list[Crossing] = []
    for path, module in model.named_modules():
        for attribute, tensor, is_parameter in roles.tensors(module):
            each = roles.variable(module, path, attribute, tensor, is_parameter)
            name = attribute if each.role in ("gamma", "free") else each.role
            shape = tuple(tensor.permute(roles.axes(module, attribute, tensor)).shape)
            variables.append(Crossing(each.own, roles.joined(path, name), shape, None, is_parameter))
    return Names(tuple(variables), {path: path for path, module in model.named_modules() if not any(module.children())})


def leaves(model: nn.Module, table: Names | None = None) -> list[Leaf]:
    """Return every parameter and buffer of a model's table (None: a twin's) in its order."""
    found: list[Leaf] = []
    for each in (table or names(model)).variables:
        path, _, attribute = each.own.rpartition(".")
        module = model.get_submodule(path)
        tensor: torch.Tensor = getattr(module, attribute)
        axes = roles.axes(module, attribute, tensor)
        found.append(Leaf(each.name, tensor, axes, each.shape, each.flattened, each.is_parameter))
    return found


def others(model: nn.Module, leaves: Sequence[Leaf]) -> dict[str, torch.Tensor]:
    """Return the buffers of a model that do not cross, by its own names for them."""
    crossing = {id(leaf.tensor) for leaf in leaves}
    return {name: buffer for name, buffer in model.named_buffers() if id(buffer) not in crossing}


def signature(table: Names) -> dict[str, tuple[int, ...]]:
    """Return name to shape of every parameter and buffer, in the table's order."""
    return {each.name: each.shape for each in table.variables}


def export(tensors: Mapping[str, torch.Tensor], leaves: Sequence[Leaf]) -> dict[str, torch.Tensor]:
    """Return tensors that are shaped like leaves, by the leaves' names, in neutral layout."""
    return {leaf.name: leaf.neutral(tensors[leaf.name].detach()) for leaf in leaves if leaf.name in tensors}


def fetched(arrays: Mapping[str, torch.Tensor]) -> Arrays:
    """Return arrays copied to the host, all copies under way at once; the device brings their axes into order."""
    if not any(array.is_cuda for array in arrays.values()):
        return {name: _copied(array.detach()) for name, array in arrays.items()}
    copies = {
        name: torch.empty(array.shape, dtype=array.dtype).copy_(array.detach(), non_blocking=True)
        for name, array in arrays.items()
    }
    torch.cuda.synchronize()
    return {name: copy.numpy() for name, copy in copies.items()}


def _copied(array: torch.Tensor) -> Any:
    # NumPy copies what is small in a third of torch's time, and turns what is large in two and a half times of it.
    if array.numel() < _LARGE:
        return np.array(array.numpy(), order="C")
    return array.clone(memory_format=torch.contiguous_format).numpy()


def stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return tensors of one shape as one [P, ...], in their own memory order (torch.stack would make images NCHW)."""
    first = tensors[0]
    whole = torch.empty_strided(
        (len(tensors), *first.shape), (first.numel(), *first.stride()), dtype=first.dtype, device=first.device
    )
    for index, tensor in enumerate(tensors):
        whole[index].copy_(tensor)
    return whole


def selected(batches: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Return one of batches [P, ...] in their own memory order, its number in a tensor [1]; the host does not wait."""
    if batches.ndim != 5 or batches.is_contiguous():
        return batches.index_select(0, position).squeeze(0)
    return batches.movedim(2, -1).index_select(0, position).squeeze(0).movedim(-1, 1)


def channels_last(activation: torch.Tensor) -> torch.Tensor:
    """Return an activation [N, C, H, W] as [N, H, W, C] (others unchanged)."""
    return activation.permute(0, 2, 3, 1) if activation.ndim == 4 else activation


def assign(leaves: Sequence[Leaf], arrays: Mapping[str, Any]) -> None:
    """Set parameters and buffers in place from neutral arrays, cast to their own dtype."""
    with torch.no_grad():
        for leaf in leaves:
            leaf.assign(torch.from_numpy(np.asarray(arrays[leaf.name])))


def channels_last_rows(tensor: torch.Tensor, channels: int, *, axis: int) -> torch.Tensor:
    """Return a tensor whose axis was flattened channels first ([C, HW]) with that axis in the order [HW, C]."""
    axis %= tensor.ndim
    return tensor.unflatten(axis, (channels, -1)).transpose(axis, axis + 1).flatten(axis, axis + 1)


def channels_first_rows(tensor: torch.Tensor, channels: int, *, axis: int) -> torch.Tensor:
    """Undo `channels_last_rows`."""
    axis %= tensor.ndim
    return tensor.unflatten(axis, (-1, channels)).transpose(axis, axis + 1).flatten(axis, axis + 1)
