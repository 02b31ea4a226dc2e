"""1x1 convolutions and their batch norms, with few passes over memory, in Triton kernels (knob `fused-batch-norm`).

A convolution's result y and its batch norm's `scale` and `bias` go on together as `Pending`. Whoever reads them applies
max(scale y + bias, 0) by itself. A gradient goes back the same way: in place of the gradient of y comes that of
scale y + bias, g. In place of the gradients of scale and bias come the sums of g (y - mean) and of g. With these the
convolution makes y's gradient a g + b y + c where it reads g and y.

Kernels stand in `compare.kernels`. Each also has a reference form here, in JAX's operations. It computes where it is
faster, and in float64.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from compare.kernels import plans
from compare.kernels.launches import Mask
from jaxbackend.layers import BatchNorm, Computed, relu_sum
from jaxbackend.only import kernel_calls


class Pending(NamedTuple):
    """A batch norm's result that is not computed yet."""

    y: jax.Array
    scale: jax.Array
    bias: jax.Array
    mean: jax.Array


class PendingSum(NamedTuple):
    """A residual block's result before its ReLU: a batch norm's result and the block's input or its projection."""

    norm: Pending
    identity: jax.Array


def run_bottlenecks(blocks: Iterable[Any], x: jax.Array) -> jax.Array:
    """Return the result of residual blocks with 1x1, 3x3 and 1x1 convolutions, in training, for x [N, H, W, C].

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
        middle = _normalise(block.middle.norm, block.middle.conv(_activate_pending(*first)))
        last = _multiply(block.last, middle, gated=False)
        waiting = PendingSum(last, x if block.shortcut is None else _project(block.shortcut, x))
    return x if waiting is None else _finish_sum(waiting)


def _has_kernels(block: Any) -> bool:
    convolutions = block.first.conv, block.last.conv
    return any(plans.has_any(*conv.kernel[...].shape[-2:]) for conv in convolutions)


def _finish_sum(x: PendingSum) -> jax.Array:
    return relu_sum(_apply(*x.norm), x.identity)


def _project(layer: Any, x: jax.Array) -> jax.Array:
    """Return a block's projected input. The library projects where pixels are left out."""
    return _apply(*_multiply(layer, x, gated=False)) if layer.conv.stride == 1 else layer(x)


def _multiply(layer: Any, x: jax.Array | Pending, *, gated: bool) -> Pending:
    """Return a 1x1 convolution with its batch norm, of x [N, H, W, C] or of max(x, 0) if x is pending.

    `gated` promises that `_activate_pending` reads the result.
    """
    dtype = layer.norm.mean[...].dtype
    nothing = jnp.zeros(1, dtype)
    kind: Mask = "affine" if isinstance(x, Pending) else "none"
    before = tuple(x) if isinstance(x, Pending) else (x, nothing, nothing, nothing)
    product: Any = _product
    _, *made = product(
        kind, gated, layer.norm.epsilon, *before, nothing, layer.conv.kernel[...], *_parameters(layer.norm)
    )
    return _finish(layer, made)


def _enter(layer: Any, x: PendingSum) -> tuple[jax.Array, Pending]:
    """Return max(x, 0), and its 1x1 convolution with batch norm, which `_activate_pending` reads."""
    inputs = (*x.norm, x.identity, layer.conv.kernel[...], *_parameters(layer.norm))
    product: Any = _product
    entered, *made = product("plain", True, layer.norm.epsilon, *inputs)
    return entered, _finish(layer, made)


def _normalise(norm: BatchNorm, y: jax.Array) -> Pending:
    """Return the batch norm of y [N, H, W, C], the result of any convolution."""
    return _pend(norm, _moments(norm.epsilon, y, *_parameters(norm)))


def _parameters(norm: BatchNorm) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return a batch norm's parameters and a rough mean."""
    return norm.scale[...], norm.bias[...], norm.mean[...]


def _finish(layer: Any, made: Any) -> Pending:
    layer.conv(Computed(made[0]))
    return _pend(layer.norm, made)


def _pend(norm: BatchNorm, made: Any) -> Pending:
    y, scale, bias, mean, variance = made
    norm.move_statistics(mean, variance, y.size // y.shape[-1])
    # Only programs that record layers read this. Every other program leaves it out.
    norm(Computed(_affine(*map(jax.lax.stop_gradient, (y, scale, bias)))))
    return Pending(y, scale, bias, mean)


@jax.custom_vjp
def _apply(y: jax.Array, scale: jax.Array, bias: jax.Array, mean: jax.Array) -> jax.Array:
    """Return scale y + bias. Its gradients are what `Pending` promises."""
    del mean
    return _affine(y, scale, bias)


def _apply_forward(y: jax.Array, scale: jax.Array, bias: jax.Array, mean: jax.Array) -> tuple[jax.Array, Any]:
    return _affine(y, scale, bias), (y, mean)


def _apply_backward(saved: Any, gradient: jax.Array) -> tuple[jax.Array, ...]:
    y, mean = saved
    wide = gradient.astype(mean.dtype)
    products = wide * (y.astype(mean.dtype) - mean)
    return gradient, products.sum((0, 1, 2)), wide.sum((0, 1, 2)), jnp.zeros_like(mean)


_apply.defvjp(_apply_forward, _apply_backward)


@jax.custom_vjp
def _activate_pending(y: jax.Array, scale: jax.Array, bias: jax.Array, mean: jax.Array) -> jax.Array:
    """Return max(scale y + bias, 0). The gradient goes back unmasked. The convolution before masks it."""
    del mean
    return nnx.relu(_affine(y, scale, bias))


def _activate_pending_forward(*pending: jax.Array) -> tuple[jax.Array, Any]:
    return _activate_pending(*pending), pending


def _activate_pending_backward(saved: Any, gradient: jax.Array) -> tuple[jax.Array, ...]:
    y, scale, bias, mean = saved
    wide = y.astype(mean.dtype)
    masked = jnp.where(wide * scale + bias > 0, gradient.astype(mean.dtype), 0)
    products = masked * (wide - mean)
    return gradient, products.sum((0, 1, 2)), masked.sum((0, 1, 2)), jnp.zeros_like(mean)


_activate_pending.defvjp(_activate_pending_forward, _activate_pending_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _moments(epsilon: float, y: jax.Array, weight: jax.Array, bias: jax.Array, shift: jax.Array) -> Any:
    """Return y, scale and bias of its batch norm, mean and variance. y's gradient reads g and y."""
    return _moments_forward(epsilon, y, weight, bias, shift)[0]


def _moments_forward(epsilon: float, y: jax.Array, weight: jax.Array, bias: jax.Array, shift: jax.Array) -> Any:
    mean, variance = _reference_moments(_rows(y), shift)
    inverse, scale, offset = _coefficients(mean, variance, weight, bias, epsilon)
    return (y, scale, offset, mean, variance), (y, mean, inverse, scale, offset)


def _moments_backward(epsilon: float, saved: Any, gradients: Any) -> tuple[jax.Array, ...]:
    del epsilon
    y, mean, inverse, scale, offset = saved
    g, products, sums, *_ = gradients
    factors = _gradient_factors(mean, inverse, scale, products, sums, offset, y.size // y.shape[-1])
    return _gradient_of_y(g, y, factors, gated=False), products * inverse, sums, jnp.zeros_like(mean)


_moments.defvjp(_moments_forward, _moments_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _product(kind: Mask, gated: bool, epsilon: float, *arrays: jax.Array) -> Any:
    """Return a 1x1 convolution's input, its result y, the scale and bias of its batch norm, mean and variance.

    The input is x itself, max(scale x + bias, 0), or max(scale x + bias + identity, 0), by `kind`. For the second, x
    stands for it.
    """
    return _product_forward(kind, gated, epsilon, *arrays)[0]


def _product_forward(kind: Mask, gated: bool, epsilon: float, *arrays: jax.Array) -> Any:
    del gated
    x, scale, bias, center, identity, kernel, norm_weight, norm_bias, shift = arrays
    entered = nnx.relu(_affine(x, scale, bias) + identity) if kind == "plain" else x
    matrix = kernel[0, 0].astype(x.dtype)
    activation = (scale, bias) if kind == "affine" else None
    y, mean, variance = _compute(_rows(entered), matrix, activation, shift, kind)
    y = y.reshape(*x.shape[:-1], -1)
    inverse, factor, offset = _coefficients(mean, variance, norm_weight, norm_bias, epsilon)
    saved = (x, entered, scale, bias, center, identity, matrix, y, mean, inverse, factor, offset)
    return (entered, y, factor, offset, mean, variance), saved


def _product_backward(kind: Mask, gated: bool, epsilon: float, saved: Any, gradients: Any) -> tuple[jax.Array, ...]:
    del epsilon
    x, entered, scale, bias, center, identity, matrix, y, mean, inverse, factor, offset = saved
    skip, g, products, sums, *_ = gradients
    factors = _gradient_factors(mean, inverse, factor, products, sums, offset, y.size // y.shape[-1])
    inputs = _Saved(kind, _rows(entered), _rows(x), scale, bias, center, _rows(skip))
    of_input, of_scale, of_bias, of_weight = _gradients(inputs, matrix, _rows(g), _rows(y), factors, gated=gated)
    of_x = of_input.reshape(x.shape)
    return (
        of_x,
        jnp.zeros_like(scale) if kind == "none" else of_scale,
        jnp.zeros_like(bias) if kind == "none" else of_bias,
        jnp.zeros_like(center),
        of_x if kind == "plain" else jnp.zeros_like(identity),
        of_weight[None, None].astype(mean.dtype),
        products * inverse,
        sums,
        jnp.zeros_like(mean),
    )


_product.defvjp(_product_forward, _product_backward)


class _Saved(NamedTuple):
    """The input of a product as matrices [rows, channels]: `entered` is the product's, `x` is before scale and ReLU."""

    kind: Mask
    entered: jax.Array
    x: jax.Array
    scale: jax.Array
    bias: jax.Array
    center: jax.Array
    skip: jax.Array

    @property
    def activation(self) -> tuple[jax.Array, jax.Array] | None:
        return (self.scale, self.bias) if self.kind == "affine" else None


def _rows(image: jax.Array) -> jax.Array:
    """Return [N, H, W, C] as [N * H * W, C]."""
    return image.reshape(-1, image.shape[-1])


def _affine(y: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    return (y.astype(scale.dtype) * scale + bias).astype(y.dtype)


def _coefficients(
    mean: jax.Array, variance: jax.Array, weight: jax.Array, bias: jax.Array, epsilon: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    inverse = jax.lax.rsqrt(variance + epsilon)
    scale = weight * inverse
    return inverse, scale, bias - mean * scale


def _gradient_factors(
    mean: jax.Array,
    inverse: jax.Array,
    scale: jax.Array,
    products: jax.Array,
    sums: jax.Array,
    bias: jax.Array,
    count: int,
) -> jax.Array:
    """Return [5, C]: a, b and c of y's gradient a g + b y + c, scale and bias.

    `products` are the sums of g (y - mean), and `sums` are those of g.
    """
    b = -scale * inverse * inverse * products / count
    c = -scale * sums / count - b * mean
    return jnp.stack([scale, b, c, scale, bias])


def _gradient_of_y(g: jax.Array, y: jax.Array, factors: jax.Array, *, gated: bool) -> jax.Array:
    """Return a g + b y + c. If `gated`, g is still to be masked by the ReLU of scale y + bias."""
    wide, masked = y.astype(factors.dtype), g.astype(factors.dtype)
    if gated:
        masked = jnp.where(wide * factors[3] + factors[4] > 0, masked, 0)
    return (masked * factors[0] + wide * factors[1] + factors[2]).astype(g.dtype)


def _activate(x: jax.Array, activation: tuple[jax.Array, jax.Array] | None) -> jax.Array:
    return x if activation is None else nnx.relu(_affine(x, *activation))


def _reference_moments(y: jax.Array, shift: jax.Array) -> tuple[jax.Array, jax.Array]:
    shifted = y.astype(shift.dtype) - shift
    mean = shifted.mean(0)
    return shift + mean, jnp.square(shifted).mean(0) - jnp.square(mean)


def _compute(
    x: jax.Array, weight: jax.Array, activation: tuple[jax.Array, jax.Array] | None, shift: jax.Array, kind: Mask
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return y = f(x) w [rows, O], its mean and its biased variance."""
    blocks = _blocks("multiply", x, weight, kind)
    if blocks is None:
        y = _activate(x, activation) @ weight
        return y, *_reference_moments(y, shift)
    scale, bias = activation or (shift, shift)
    y, means, squares = kernel_calls.multiply(x, weight, scale, bias, shift, kind, plans.uses_tf32(), blocks)
    return y, *_join_moments(means, squares, x.shape[0], blocks[0])


def _blocks(kernel: str, x: jax.Array, weight: jax.Array, kind: Mask) -> list[int] | None:
    """Return the block sizes of a kernel. None where its reference form computes."""
    if x.dtype == jnp.float64:
        return None
    return plans.find(kernel, x.shape[1], weight.shape[1], kind)


def _join_moments(means: jax.Array, squares: jax.Array, rows: int, block: int) -> tuple[jax.Array, jax.Array]:
    """Return mean and biased variance from those of each program, which walks over every so many-th block of rows."""
    walkers = means.shape[0]
    walker = jnp.arange(walkers)
    blocks = -(-rows // block)
    counts = (blocks - walker + walkers - 1) // walkers * block
    counts = jnp.where(walker == (blocks - 1) % walkers, counts - (blocks * block - rows), counts)
    counts = counts.astype(means.dtype)[:, None]
    mean = (counts * means).sum(0) / rows
    return mean, (squares + counts * jnp.square(means - mean)).sum(0) / rows


def _gradients(
    saved: _Saved, weight: jax.Array, g: jax.Array, y: jax.Array, factors: jax.Array, *, gated: bool
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return the gradient v of the product's pending input, the sums of v (x - center) and of v, and of the weight."""
    kind, tf32 = saved.kind, plans.uses_tf32()
    d = _gradient_of_y(g, y, factors, gated=gated)
    if blocks := _blocks("data_gradient", saved.x, weight, kind):
        operands = weight, saved.entered, saved.center, saved.skip, saved.x
        v, sums, products = kernel_calls.data_gradient(g, y, factors, *operands, tf32, blocks)
        products, sums = products.sum(0), sums.sum(0)
    else:
        v, products, sums = _reference_data_gradient(saved, d @ weight.T)
    if blocks := _blocks("weight_gradient", saved.x, weight, kind):
        parts = kernel_calls.weight_gradient(g, y, factors, saved.entered, tf32, blocks)
        return v, products, sums, parts.sum(0)
    return v, products, sums, _activate(saved.entered, saved.activation).T @ d


def _reference_data_gradient(saved: _Saved, v: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    wide_type = saved.center.dtype
    if saved.kind == "none":
        return v, saved.center, saved.center
    if saved.kind == "affine":
        v = jnp.where(_activate(saved.x, saved.activation) > 0, v, 0)
    else:
        v = jnp.where(saved.entered > 0, v + saved.skip, 0)
    wide = v.astype(wide_type)
    return v, (wide * (saved.x.astype(wide_type) - saved.center)).sum(0), wide.sum(0)
