"""Convolutions that add their bias and a residual and apply ReLU in the same kernel: the knob `fused-convolutions`.

cuDNN has such kernels. torch.jit's frozen models call them (`aten::cudnn_convolution_relu`,
`aten::cudnn_convolution_add_relu`), and TorchInductor does not.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

_ATEN: Any = torch.ops.aten
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@torch.library.custom_op("samestep::convolve_relu", mutates_args=(), device_types="cuda")
def convolve_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Return max(0, conv(x, weight) + bias + residual), in x's dtype and memory order.

    Args:
        x: images [batch, channels, ...].
        weight: kernels [outputs, channels / groups, ...].
        bias: [outputs], or None.
        residual: of the result's shape, or None.
        stride, padding, dilation: of each spatial axis.
        groups: groups of channels.
    """
    rest = (bias, stride, padding, dilation, groups)
    if residual is None:
        return _ATEN.cudnn_convolution_relu(x, weight, *rest)
    return _ATEN.cudnn_convolution_add_relu(x, weight, residual, 1.0, *rest)


@convolve_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, *how: Any) -> Tensor:
    del residual
    return torch.empty_like(_convolve(x, weight, bias, *how))


@convolve_relu.register_kernel("cpu")
def _(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, *how: Any) -> Tensor:
    result = _convolve(x, weight, bias, *how)
    return (result if residual is None else result + residual).relu()


def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    return _ATEN.convolution.default(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)


def fuse(graph: Graph) -> None:
    """Let `convolve_relu` compute each convolution that is followed by ReLU alone, or by a sum and ReLU."""
    relu: Any
    for relu in graph.find_nodes(op="call_function", target=_ATEN.relu.default):
        conv, residual = _find_convolution(relu.args[0])
        if conv is None:
            continue
        x, weight, bias, stride, padding, dilation, _, _, groups = conv.args
        with graph.inserting_before(relu):
            fused = graph.call_function(
                torch.ops.samestep.convolve_relu.default,
                (x, weight, bias, residual, stride, padding, dilation, groups),
            )
        fused.meta = dict(relu.meta)
        relu.replace_all_uses_with(fused)
        graph.erase_node(relu)
        if residual is not None:
            graph.erase_node(next(user for user in conv.users))
        graph.erase_node(conv)


def _find_convolution(node: Any) -> tuple[Any, Any]:
    """Return the convolution that a node is, or that it adds to a residual, and the residual."""
    if not isinstance(node, Node) or len(node.users) != 1:
        return None, None
    if _is_fusible(node):
        return node, None
    if node.target is not _ATEN.add.Tensor or node.kwargs:
        return None, None
    left, right = node.args[:2]
    conv: Any
    residual: Any
    for conv, residual in ((left, right), (right, left)):
        if _is_fusible(conv) and len(conv.users) == 1 and _is_alike(conv, residual):
            return conv, residual
    return None, None


def _is_fusible(node: Any) -> bool:
    if not isinstance(node, Node) or node.target is not _ATEN.convolution.default:
        return False
    arguments: Any = node.args
    is_transposed, groups = arguments[6], arguments[8]
    return not is_transposed and groups == 1 and node.meta["val"].dtype in _DTYPES


def _is_alike(conv: Any, residual: Any) -> bool:
    """Tell whether a residual has the shape, dtype and memory order of a convolution's result, as cuDNN wants."""
    if not isinstance(residual, Node) or residual is conv:
        return False
    result, other = conv.meta["val"], residual.meta["val"]
    return (result.shape, result.dtype, result.stride()) == (other.shape, other.dtype, other.stride())
