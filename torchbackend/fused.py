"""1x1 convolutions and their batch norms, with few passes over memory, in Triton kernels (knob `fused-batch-norm`).

A convolution's result y and its batch norm's `scale` and `bias` go on together as `Pending`. Whoever reads them applies
max(scale y + bias, 0) by itself. A gradient goes back the same way: in place of the gradient of y comes that of
scale y + bias, g. In place of the gradients of scale and bias come the sums of g (y - mean) and of g. With these the
convolution makes y's gradient a g + b y + c where it reads g and y.

Kernels stand in `compare.kernels`. Each also has a reference form here, in PyTorch's operations. It computes where it
is faster, and in float64.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from compare.kernels import plans
from compare.kernels.launches import Mask
from torchbackend.layers import BatchNorm, relu_sum
from torchbackend.only import kernel_operators


class Pending(NamedTuple):
    """A batch norm's result. `value` is the result itself, and a compiled program leaves it out if nobody reads it."""

    value: torch.Tensor
    y: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor
    mean: torch.Tensor


class PendingSum(NamedTuple):
    """A residual block's result before its ReLU: a batch norm's result and the block's input or its projection."""

    norm: Pending
    identity: torch.Tensor


def run_bottlenecks(blocks: Iterable[Any], x: torch.Tensor) -> torch.Tensor:
    """Return the result of residual blocks with 1x1, 3x3 and 1x1 convolutions, in training, for x [N, C, H, W].

    A block without a kernel in the plan runs as without the knob, because compilers fuse it better.
    """
    waiting: PendingSum | None = None
    for block in blocks:
        if not _has_kernels(block):
            x, waiting = block(x if waiting is None else _finish_sum(waiting)), None
            continue
        if waiting is None:
            first = _multiply(block.first, x, gated=True)
        else:
            x, first = _enter(block.first, waiting)
        middle = _normalise(block.middle.norm, block.middle.conv(_activate_pending(first)))
        last = _multiply(block.last, middle, gated=False)
        waiting = PendingSum(last, x if block.shortcut is None else _project(block.shortcut, x))
    return x if waiting is None else _finish_sum(waiting)


def _has_kernels(block: Any) -> bool:
    convolutions = block.first.conv, block.last.conv
    return any(plans.has_any(conv.weight.shape[1], conv.weight.shape[0]) for conv in convolutions)


def _finish_sum(x: PendingSum) -> torch.Tensor:
    return relu_sum(x.norm.value, x.identity)


def _activate_pending(x: Pending) -> torch.Tensor:
    """Return max(x, 0)."""
    result: Any = _ApplyActivated.apply(x.y, x.scale, x.bias, x.mean)
    return result


def _project(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """Return a block's projected input. The library projects where pixels are left out."""
    return _multiply(layer, x, gated=False).value if layer.conv.stride == (1, 1) else layer(x)


def _multiply(layer: Any, x: torch.Tensor | Pending, *, gated: bool) -> Pending:
    """Return a 1x1 convolution with its batch norm, of x [N, C, H, W] or of max(x, 0) if x is pending.

    `gated` promises that `_activate_pending` reads the result.
    """
    before = (x.y, x.scale, x.bias, x.mean) if isinstance(x, Pending) else (x, None, None, None)
    return _finish(layer, _Product.apply(*before, None, layer.conv.weight, *_parameters(layer.norm), gated))


def _enter(layer: Any, x: PendingSum) -> tuple[torch.Tensor, Pending]:
    """Return max(x, 0), and its 1x1 convolution with batch norm, which `_activate_pending` reads."""
    before = x.norm.y, x.norm.scale, x.norm.bias, x.norm.mean
    made: Any = _Product.apply(*before, x.identity, layer.conv.weight, *_parameters(layer.norm), True)
    return made[0], _finish(layer, made[1:])


def _normalise(norm: BatchNorm, y: torch.Tensor) -> Pending:
    """Return the batch norm of y [N, C, H, W], the result of any convolution."""
    return _pend(norm, _Moments.apply(y, *_parameters(norm)))


def _parameters(norm: BatchNorm) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """Return a batch norm's parameters, a rough mean, and epsilon."""
    assert norm.running_mean is not None  # it is set
    return norm.weight, norm.bias, norm.running_mean.clone(), norm.eps


def _finish(layer: Any, made: Any) -> Pending:
    _show(layer.conv, made[0])
    return _pend(layer.norm, made)


def _pend(norm: BatchNorm, made: Any) -> Pending:
    y, scale, bias, mean, variance = made
    norm.move_statistics(mean.detach(), variance.detach(), y.numel() // y.shape[1])
    value: Any = _Apply.apply(y, scale, bias, mean)
    _show(norm, value)
    return Pending(value, y, scale, bias, mean)


def _show(layer: nn.Module, result: torch.Tensor) -> None:
    """Call the hooks of a layer that was computed with others, so that its result is recorded."""
    for hook in layer._forward_hooks.values():
        hook(layer, (), result)


class _Apply(torch.autograd.Function):
    """scale y + bias. Its gradients are what `Pending` promises."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(y, mean)
        return _affine(y, scale, bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] -- as torch documents it
        y, mean = ctx.saved_tensors
        wide = gradient.to(mean.dtype)
        products = wide * (y.to(mean.dtype) - mean[:, None, None])
        return gradient, products.sum((0, 2, 3)), wide.sum((0, 2, 3)), None


class _ApplyActivated(torch.autograd.Function):
    """max(scale y + bias, 0). The gradient goes back unmasked. The convolution before masks it."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(y, scale, bias, mean)
        return functional.relu(_affine(y, scale, bias))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] -- as torch documents it
        y, scale, bias, mean = ctx.saved_tensors
        wide = y.to(mean.dtype)
        switch = wide * scale[:, None, None] + bias[:, None, None]
        masked = torch.where(switch > 0, gradient.to(mean.dtype), 0)
        products = masked * (wide - mean[:, None, None])
        return gradient, products.sum((0, 2, 3)), masked.sum((0, 2, 3)), None


class _Moments(torch.autograd.Function):
    """Scale and bias of a batch norm. y's gradient reads g and y."""

    @staticmethod
    def forward(
        ctx: Any, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, shift: torch.Tensor, epsilon: float
    ) -> Any:
        mean, variance = _reference_moments(_rows(y), shift)
        inverse, scale, offset = _coefficients(mean, variance, weight, bias, epsilon)
        ctx.save_for_backward(y, mean, inverse, scale, offset)
        return y.view_as(y), scale, offset, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] -- as torch documents it
        y, mean, inverse, scale, offset = ctx.saved_tensors
        g, products, sums, *_ = gradients
        factors = _gradient_factors(mean, inverse, scale, products, sums, offset, y.numel() // y.shape[1])
        d = _gradient_of_y(_rows(g), _rows(y), factors, gated=False)
        return _image(d, y), products * inverse, sums, None, None


class _Product(torch.autograd.Function):
    """A 1x1 convolution and the scale and bias of its batch norm.

    Its input is x itself (no `scale`), max(scale x + bias, 0), or max(scale x + bias + identity, 0).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        scale: torch.Tensor | None,
        bias: torch.Tensor | None,
        center: torch.Tensor | None,
        identity: torch.Tensor | None,
        weight: torch.Tensor,
        norm_weight: torch.Tensor,
        norm_bias: torch.Tensor,
        shift: torch.Tensor,
        epsilon: float,
        gated: bool,
    ) -> Any:
        entered = x
        if identity is not None:
            assert scale is not None
            assert bias is not None
            entered = functional.relu(_affine(x, scale, bias) + identity)
        matrix = weight.flatten(1).to(x.dtype)
        activation = (scale, bias) if scale is not None and bias is not None and identity is None else None
        kind: Mask = "none" if scale is None else "affine" if identity is None else "plain"
        y, mean, variance = _compute(_rows(entered), matrix, activation, shift, kind)
        y = y.view(x.shape[0], *x.shape[2:], -1).permute(0, 3, 1, 2)
        inverse, factor, offset = _coefficients(mean, variance, norm_weight, norm_bias, epsilon)
        ctx.kind, ctx.gated = kind, gated
        nothing = x.new_zeros(1)
        vectors = [nothing if vector is None else vector for vector in (scale, bias, center)]
        ctx.save_for_backward(x, entered, *vectors, matrix, y, mean, inverse, factor, offset)
        made = y, factor, offset, mean, variance
        return made if identity is None else (entered, *made)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] -- as torch documents it
        x, entered, scale, bias, center, matrix, y, mean, inverse, factor, offset = ctx.saved_tensors
        skip, g, products, sums, *_ = gradients if ctx.kind == "plain" else (gradients[0], *gradients)
        factors = _gradient_factors(mean, inverse, factor, products, sums, offset, y.numel() // y.shape[1])
        saved = _Saved(ctx.kind, _rows(entered), _rows(x), scale, bias, center, _rows(skip))
        of_input, of_scale, of_bias, of_weight = _gradients(saved, matrix, _rows(g), _rows(y), factors, gated=ctx.gated)
        of_x = _image(of_input, x)
        of_weight = of_weight.T.reshape(*matrix.shape, 1, 1).to(mean.dtype)
        of_norm = products * inverse, sums
        if ctx.kind == "none":
            of_scale = of_bias = None
        return (
            of_x,
            of_scale,
            of_bias,
            None,
            of_x if ctx.kind == "plain" else None,
            of_weight,
            *of_norm,
            None,
            None,
            None,
        )


class _Saved(NamedTuple):
    """The input of a product as matrices [rows, channels]: `entered` is the product's, `x` is before scale and ReLU."""

    kind: Mask
    entered: torch.Tensor
    x: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor
    center: torch.Tensor
    skip: torch.Tensor

    @property
    def activation(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        return (self.scale, self.bias) if self.kind == "affine" else None


def _rows(image: torch.Tensor) -> torch.Tensor:
    """Return [N, C, H, W] as [N * H * W, C]."""
    return image.permute(0, 2, 3, 1).reshape(-1, image.shape[1])


def _image(rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    n, _, h, w = like.shape
    return rows.view(n, h, w, -1).permute(0, 3, 1, 2)


def _affine(y: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return scale y + bias, in the dtype of y.

    A cast to the same dtype as a function's last operation loses the function's gradient in compiled programs
    (torch 2.11).
    """
    wide = y.to(scale.dtype) * scale[:, None, None] + bias[:, None, None]
    return wide if wide.dtype == y.dtype else wide.to(y.dtype)


def _coefficients(
    mean: torch.Tensor, variance: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    inverse = torch.rsqrt(variance + epsilon)
    scale = weight * inverse
    return inverse, scale, bias - mean * scale


def _gradient_factors(
    mean: torch.Tensor,
    inverse: torch.Tensor,
    scale: torch.Tensor,
    products: torch.Tensor,
    sums: torch.Tensor,
    bias: torch.Tensor,
    count: int,
) -> torch.Tensor:
    """Return [5, C]: a, b and c of y's gradient a g + b y + c, scale and bias.

    `products` are the sums of g (y - mean), and `sums` are those of g.
    """
    b = -scale * inverse * inverse * products / count
    c = -scale * sums / count - b * mean
    return torch.stack([scale, b, c, scale, bias])


def _gradient_of_y(g: torch.Tensor, y: torch.Tensor, factors: torch.Tensor, *, gated: bool) -> torch.Tensor:
    """Return a g + b y + c. If `gated`, g is still to be masked by the ReLU of scale y + bias."""
    wide, masked = y.to(factors.dtype), g.to(factors.dtype)
    if gated:
        masked = torch.where(wide * factors[3] + factors[4] > 0, masked, 0)
    return (masked * factors[0] + wide * factors[1] + factors[2]).to(g.dtype)


def _activate(x: torch.Tensor, activation: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
    if activation is None:
        return x
    scale, bias = activation
    return functional.relu((x.to(scale.dtype) * scale + bias).to(x.dtype))


def _reference_moments(y: torch.Tensor, shift: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    shifted = y.to(shift.dtype) - shift
    mean = shifted.mean(0)
    return shift + mean, shifted.square().mean(0) - mean.square()


def _compute(
    x: torch.Tensor,
    weight: torch.Tensor,
    activation: tuple[torch.Tensor, torch.Tensor] | None,
    shift: torch.Tensor,
    kind: Mask,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return y = f(x) w^T [rows, O], its mean and its biased variance."""
    blocks = _blocks("multiply", x, weight, kind)
    if blocks is None:
        y = _activate(x, activation) @ weight.T
        return y, *_reference_moments(y, shift)
    scale, bias = activation or (shift, shift)
    y, means, squares = kernel_operators.multiply(x, weight, scale, bias, shift, kind, plans.uses_tf32(), blocks)
    return y, *_join_moments(means, squares, x.shape[0], blocks[0])


def _blocks(kernel: str, x: torch.Tensor, weight: torch.Tensor, kind: Mask) -> list[int] | None:
    """Return the block sizes of a kernel. None where its reference form computes."""
    if x.dtype == torch.float64:
        return None
    return plans.find(kernel, x.shape[1], weight.shape[0], kind)


def _join_moments(
    means: torch.Tensor, squares: torch.Tensor, rows: int, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and biased variance from those of each program, which walks over every so many-th block of rows."""
    walkers = means.shape[0]
    walker = torch.arange(walkers, device=means.device)
    blocks = -(-rows // block)
    counts = (blocks - walker + walkers - 1) // walkers * block
    counts = torch.where(walker == (blocks - 1) % walkers, counts - (blocks * block - rows), counts)
    counts = counts.to(means.dtype)[:, None]
    mean = (counts * means).sum(0) / rows
    return mean, (squares + counts * (means - mean).square()).sum(0) / rows


def _gradients(
    saved: _Saved, weight: torch.Tensor, g: torch.Tensor, y: torch.Tensor, factors: torch.Tensor, *, gated: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradient v of the product's pending input, the sums of v (x - center) and of v, and of the weight."""
    kind, tf32 = saved.kind, plans.uses_tf32()
    d = _gradient_of_y(g, y, factors, gated=gated)
    if blocks := _blocks("data_gradient", saved.x, weight, kind):
        operands = weight, saved.entered, saved.center, saved.skip, saved.x
        v, sums, products = kernel_operators.data_gradient(g, y, factors, *operands, tf32, blocks)
        products, sums = products.sum(0), sums.sum(0)
    else:
        v, products, sums = _reference_data_gradient(saved, d @ weight)
    if blocks := _blocks("weight_gradient", saved.x, weight, kind):
        parts = kernel_operators.weight_gradient(g, y, factors, saved.entered, tf32, blocks)
        return v, products, sums, parts.sum(0)
    return v, products, sums, _activate(saved.entered, saved.activation).T @ d


def _reference_data_gradient(saved: _Saved, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    wide_type = saved.center.dtype
    if saved.kind == "none":
        return v, saved.center, saved.center
    if saved.kind == "affine":
        v = torch.where(_activate(saved.x, saved.activation) > 0, v, 0)
    else:
        v = torch.where(saved.entered > 0, v + saved.skip, 0)
    wide = v.to(wide_type)
    return v, (wide * (saved.x.to(wide_type) - saved.center)).sum(0), wide.sum(0)
