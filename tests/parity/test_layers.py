"""The layers and losses of residual networks and ConvNeXt: both backends against NumPy, in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scipy import special  # pyright: ignore[reportMissingTypeStubs]

import jaxbackend.gradients
import jaxbackend.layers
import jaxbackend.layout
import jaxbackend.losses
import jaxbackend.precision
import jaxbackend.stems
import torchbackend.layers
import torchbackend.losses
import torchbackend.stems
from compare.base.interface import Array, Arrays
from tests.parity.layer_twins import Twin, same

SHAPE = (3, 2, 5, 4)


def drawn(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def layer_norm() -> tuple[Twin, Arrays]:
    arrays = {"scale": drawn(1, 4), "bias": drawn(2, 4)}
    return Twin("LayerNorm", 4, arrays=arrays), arrays


def normalised(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize("shape", [SHAPE, (3, 4)], ids=["pixels", "vectors"])
@pytest.mark.parametrize("spread", [3, 1e-3], ids=["wide", "narrow"])  # a variance of 1e-6 is as large as epsilon
def test_layer_norm_is_over_channels_with_the_biased_variance_and_an_epsilon_of_1e_6(
    shape: tuple[int, ...], spread: float
):
    layer, arrays = layer_norm()
    x = spread * drawn(0, *shape) + 1
    same(layer(x), normalised(x) * arrays["scale"] + arrays["bias"])


def test_layer_norm_s_gradients_pass_through_mean_and_variance():
    layer, arrays = layer_norm()
    x, weight = 3 * drawn(0, *SHAPE) + 1, drawn(3, *SHAPE)
    found, y = layer.gradients(x, weight), normalised(x)
    same(found["bias"], weight.sum((0, 1, 2)))
    same(found["scale"], (weight * y).sum((0, 1, 2)))
    error = weight * arrays["scale"]
    through = error - error.mean(-1, keepdims=True) - y * (error * y).mean(-1, keepdims=True)
    same(found["input"], through / np.sqrt(x.var(-1, keepdims=True) + 1e-6))


# Below -10, float64 does not resolve x * Phi(x) beside 1. The tanh form is off by up to 5e-4.
POINTS = np.concatenate([np.linspace(-10, 10, 2001), [-40.0, 0.0, 40.0]])
DISTRIBUTION = 0.5 * (1 + special.erf(POINTS / np.sqrt(2)))


def test_gelu_is_x_times_the_gaussian_distribution_function():
    with jaxbackend.precision.policy("float64", "cpu").scope():
        same(np.asarray(jaxbackend.layers.gelu(jnp.asarray(POINTS))), POINTS * DISTRIBUTION)
    same(torchbackend.layers.gelu(torch.from_numpy(POINTS)).numpy(), POINTS * DISTRIBUTION)


def test_gelu_s_gradient_has_the_gaussian_density():
    expected = DISTRIBUTION + POINTS * np.exp(-(POINTS**2) / 2) / np.sqrt(2 * np.pi)
    with jaxbackend.precision.policy("float64", "cpu").scope():
        ours = jax.grad(lambda x: jaxbackend.layers.gelu(x).sum())(jnp.asarray(POINTS))
        same(np.asarray(ours), expected)
    leaf = torch.from_numpy(POINTS).requires_grad_()
    torchbackend.layers.gelu(leaf).sum().backward()
    assert leaf.grad is not None
    same(leaf.grad.numpy(), expected)


def windows(images: Array, size: int, stride: int, padding: int, fill: float = 0.0) -> Array:
    """Return every window [N, H, W, C, size, size] of images padded on all sides."""
    padded = np.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)), constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, (size, size), (1, 2))[:, ::stride, ::stride]


@pytest.mark.parametrize("size", [(8, 8), (7, 9), (1, 2)], ids=str)
def test_max_pool_3x3_with_stride_2_pads_one_row_of_minus_infinity_on_every_side(size: tuple[int, int]):
    images = drawn(0, 2, *size, 3) - 5  # all negative: padding by zero would show
    same(Twin("MaxPool", 3, stride=2, padding=1)(images), windows(images, 3, 2, 1, -np.inf).max((-2, -1)))


@pytest.mark.parametrize(
    ("size", "stride", "padding", "sides"),
    [
        *((*window, (9, 8)) for window in [(2, 2, 0), (3, 1, 1), (2, 3, 0), (3, 2, 0), (5, 2, 2), (4, 3, 1)]),
        *((3, 2, 1, sides) for sides in [(9, 8), (5, 6), (33, 18)]),
        *((*window, (33, 18)) for window in [(2, 16, 0), (9, 9, 4)]),
    ],
)
def test_max_pool_s_gradient_is_torch_s(size: int, stride: int, padding: int, sides: tuple[int, int]):
    images = drawn(0, 2, *sides, 3).round()  # with ties
    layer = Twin("MaxPool", size, stride=stride, padding=padding)
    layer.gradients(images, drawn(1, *layer(images).shape))


def test_max_pool_s_gradient_goes_to_the_first_of_equal_values():
    images, weight = np.zeros((1, 4, 4, 1)), np.array([[1.0, 2.0], [3.0, 4.0]]).reshape(1, 2, 2, 1)
    found = Twin("MaxPool", 3, stride=2, padding=1).gradients(images, weight)["input"]
    expected = np.zeros((4, 4))
    expected[0, 0], expected[0, 1], expected[1, 0], expected[1, 1] = 1, 2, 3, 4
    same(found, expected.reshape(1, 4, 4, 1))


def test_max_pool_keeps_a_nan_and_its_gradient_goes_there():
    images, weight = np.array([[1.0, 2.0], [np.nan, 0.0]]).reshape(1, 2, 2, 1), np.full((1, 1, 1, 1), 3.0)
    layer = Twin("MaxPool", 2)
    same(layer(images), np.full((1, 1, 1, 1), np.nan))
    same(layer.gradients(images, weight)["input"], np.array([[0.0, 0.0], [3.0, 0.0]]).reshape(1, 2, 2, 1))


def convolved(images: Array, kernel: Array, stride: int, padding: int, groups: int) -> Array:
    """Return the convolution of each group of channels with its part of a kernel [H, W, inputs / groups, outputs]."""
    parts = zip(np.split(images, groups, -1), np.split(kernel, groups, -1), strict=True)
    size = kernel.shape[0]
    return np.concatenate(
        [np.einsum("nhwiyx,yxio->nhwo", windows(part, size, stride, padding), own) for part, own in parts], -1
    )


CONVOLUTIONS = {
    "grouped": (6, 4, 3, {"groups": 2, "padding": 1}),
    "grouped with stride": (6, 9, 3, {"groups": 3, "padding": 1, "stride": 2}),
    "depthwise": (4, 4, 7, {"groups": 4, "padding": 3}),
    "depthwise, two outputs a channel": (4, 8, 3, {"groups": 4, "padding": 1}),
    "pointwise": (4, 6, 1, {}),
    "pointwise with stride": (4, 6, 1, {"stride": 2}),
    "patches": (3, 4, 4, {"stride": 4}),
    "7x7 stem": (3, 4, 7, {"stride": 2, "padding": 3}),
}


@pytest.mark.parametrize(
    ("name", "size"),
    [(name, (9, 7)) for name in CONVOLUTIONS]
    + [(name, (8, 8)) for name, (*_, options) in CONVOLUTIONS.items() if "stride" in options],
)
def test_a_convolution_has_the_stride_the_padding_and_the_groups_that_it_is_told_and_torch_s_gradients(
    name: str, size: tuple[int, int]
):
    inputs, outputs, kernel_size, options = CONVOLUTIONS[name]
    groups, images = options.get("groups", 1), drawn(0, 2, *size, inputs)
    arrays = {"kernel": drawn(1, kernel_size, kernel_size, inputs // groups, outputs), "bias": drawn(2, outputs)}
    layer = Twin("Conv", inputs, outputs, kernel_size, arrays=arrays, **options)
    stride, padding = options.get("stride", 1), options.get("padding", 0)
    found = layer(images)
    same(found, convolved(images, arrays["kernel"], stride, padding, groups) + arrays["bias"])
    assert set(layer.gradients(images, drawn(3, *found.shape))) == {"input", "kernel", "bias"}


@pytest.mark.parametrize("place", [(0, 0, 0), (0, 16, 16), (8, 0, 16), (-1, -1, -1)])
def test_a_corner_far_from_all_other_pixels_spoils_no_variance(place: tuple[int, int, int]):
    images = drawn(0, 16, 32, 32, 2).astype(np.float32)
    images[place] = 1e4
    wanted = images.astype(np.float64).reshape(-1, 2).var(0)
    ours = jaxbackend.layers._moments(jnp.asarray(images))[1]
    theirs = torchbackend.layers._moments(torch.from_numpy(images).movedim(-1, 1))[1]
    for found in (ours, theirs):
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=2e-5)


def test_few_channels_are_convolved_with_a_stride_from_space_to_depth():
    images, kernel = drawn(0, 2, 30, 32, 3), drawn(1, 7, 7, 3, 5)
    with jaxbackend.precision.policy("float64", "cpu").scope():
        blocks, of_blocks = jaxbackend.stems.space_to_depth(jnp.asarray(images), jnp.asarray(kernel), 2, 3)
    theirs = torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(kernel).permute(3, 2, 0, 1)
    x, weight = torchbackend.stems.space_to_depth(*theirs, 2, 3)
    assert (blocks.shape, of_blocks.shape) == ((2, 18, 19, 16), (4, 4, 16, 5))
    same(np.asarray(blocks), x.permute(0, 2, 3, 1).numpy())
    same(np.asarray(of_blocks), weight.permute(2, 3, 1, 0).numpy())
    same(np.asarray(blocks[:, 2, 2, :3]), images[:, 1, 1])  # the fifth row and column of the padded images
    assert x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("padding", [0, 1])
def test_few_channels_are_convolved_without_a_stride_as_a_product_of_windows(padding: int):
    images, kernel = drawn(0, 2, 6, 8, 3), drawn(1, 3, 3, 3, 5)
    with jaxbackend.precision.policy("float64", "cpu").scope():
        windows, of_windows = jaxbackend.stems.patches(jnp.asarray(images), jnp.asarray(kernel), padding)
    theirs = torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(kernel).permute(3, 2, 0, 1)
    x, weight = torchbackend.stems.patches(*theirs, padding)
    assert (windows.shape, of_windows.shape) == ((2, 4 + 2 * padding, 6 + 2 * padding, 32), (1, 1, 32, 5))
    same(np.asarray(windows), x.permute(0, 2, 3, 1).numpy())
    same(np.asarray(of_windows), weight.permute(2, 3, 1, 0).numpy())
    same(np.asarray(windows[:, 2, 3, :27]), images[:, 2 - padding :, 3 - padding :][:, :3, :3].reshape(2, -1))
    assert not windows[..., 27:].any()
    assert x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("channels", "size", "stride", "height", "jax", "torch_"),
    [
        (3, 3, 1, 128, 32, 32),
        (3, 3, 1, 96, None, 32),  # XLA takes longer for windows of small images than they save
        (1, 3, 1, 128, None, None),
        (4, 3, 1, 128, None, None),
        (3, 1, 1, 128, None, None),
        (3, 3, 2, 32, 16, 16),
        (8, 3, 2, 32, None, None),
    ],
)
def test_which_convolutions_are_written_as_others(
    channels: int, size: int, stride: int, height: int, jax: int | None, torch_: int | None
):
    images, kernel = jnp.zeros((1, height, 16, channels)), jnp.zeros((size, size, channels, 2))
    ours = jaxbackend.stems.rewrite(images, kernel, stride, 1)
    assert (ours and ours[0].shape[-1]) == jax
    given = torch.zeros(1, height, 16, channels).movedim(-1, 1), torch.zeros(2, channels, size, size)
    theirs = torchbackend.stems.rewrite(*given, stride, 1)
    assert (theirs and theirs[0].shape[1]) == torch_
    if channels > 1:  # of one channel, memory has but one order
        assert torchbackend.stems.rewrite(given[0].contiguous(), given[1], stride, 1) is None


def test_a_convolution_without_bias_has_a_kernel_alone():
    kernel, images = drawn(1, 3, 3, 2, 4), drawn(0, 2, 5, 5, 2)
    layer = Twin("Conv", 2, 4, 3, arrays={"kernel": kernel}, padding=1, bias=False)
    assert [leaf.name for leaf in layer.leaves] == ["0.kernel"]
    assert list(jaxbackend.layout.signature(jaxbackend.layout.names(layer.jax))) == ["kernel"]
    same(layer(images), convolved(images, kernel, 1, 1, 1))


def spread(images: Array, kernel: Array, stride: int, padding: int) -> Array:
    """Return the transposed convolution with a kernel [H, W, outputs, inputs]: every pixel adds its part of it."""
    count, height, width, _ = images.shape
    size = kernel.shape[0]
    whole = np.zeros((count, (height - 1) * stride + size, (width - 1) * stride + size, kernel.shape[2]))
    for i, j in np.ndindex(height, width):
        own = np.einsum("ni,yxoi->nyxo", images[:, i, j], kernel)
        whole[:, i * stride : i * stride + size, j * stride : j * stride + size] += own
    return whole[:, padding : whole.shape[1] - padding, padding : whole.shape[2] - padding]


TRANSPOSED = {"2x2 stride 2": (2, 2, 0), "3x3": (3, 1, 1), "3x3 stride 2": (3, 2, 1), "4x4 stride 2": (4, 2, 1)}


@pytest.mark.parametrize("size", [(4, 4), (5, 3), (1, 2)], ids=str)
@pytest.mark.parametrize(("kernel_size", "stride", "padding"), TRANSPOSED.values(), ids=TRANSPOSED)
def test_a_transposed_convolution_adds_every_pixel_s_part_of_the_kernel(
    kernel_size: int, stride: int, padding: int, size: tuple[int, int]
):
    kernel, bias, images = drawn(1, kernel_size, kernel_size, 3, 4), drawn(2, 3), drawn(0, 2, *size, 4)
    arrays = {"kernel": kernel, "bias": bias}
    layer = Twin("ConvTranspose", 4, 3, kernel_size, arrays=arrays, stride=stride, padding=padding)
    assert dict(jaxbackend.layout.signature(jaxbackend.layout.names(layer.jax))) == {
        name: array.shape for name, array in arrays.items()
    }
    found = layer(images)
    same(found, spread(images, kernel, stride, padding) + bias)
    weight = drawn(3, *found.shape)
    gradients = layer.gradients(images, weight)
    same(gradients["bias"], weight.sum((0, 1, 2)))
    # The sum over outputs is linear in the kernel and in the images: their gradients are the parts of that sum.
    total = (spread(images, kernel, stride, padding) * weight).sum()
    for name, array in (("kernel", kernel), ("input", images)):
        np.testing.assert_allclose((gradients[name] * array).sum(), total, rtol=1e-12)
    # It is the transpose: the gradient of the images is the convolution of the outputs' with the same kernel.
    same(gradients["input"], convolved(weight, kernel, stride, padding, 1))


@pytest.mark.parametrize("size", [(4, 6), (5, 6), (4, 7), (5, 7)], ids=str)
def test_concatenation_pads_the_second_image_by_zeros_at_its_far_edges(size: tuple[int, int]):
    first, second = drawn(0, 2, *size, 3), drawn(1, 2, 4, 6, 2)
    expected = np.zeros((2, *size, 5))
    expected[..., :3], expected[:, :4, :6, 3:] = first, second
    same(Twin("Concatenate")(first, second), expected)


def test_relu6_is_cut_at_0_and_6_and_has_no_gradient_there():
    points = np.array([-1.0, 0.0, 1e-9, 3.0, 6.0 - 1e-9, 6.0, 6.5, np.nan])
    with jaxbackend.precision.policy("float64", "cpu").scope():
        value, gradient = jax.vmap(jax.value_and_grad(jaxbackend.layers.relu6))(jnp.asarray(points))
        ours = np.asarray(value), np.asarray(gradient)
    leaf = torch.from_numpy(points).requires_grad_()
    result = torchbackend.layers.relu6(leaf)
    result.sum().backward()
    assert leaf.grad is not None
    for value, gradient in (ours, (result.detach().numpy(), leaf.grad.numpy())):
        same(value, np.array([0, 0, 1e-9, 3, 6 - 1e-9, 6, 6, np.nan]))
        np.testing.assert_array_equal(gradient[:-1], [0, 0, 1, 1, 1, 0, 0])


def test_a_relu_of_a_sum_has_the_gradient_of_both_terms_where_it_is_positive():
    first, second = np.array([-1.0, 1.0, 0.5, 1e-9, 2.0, np.nan]), np.array([0.5, -1.0, 1.0, 0.0, np.nan, 1.0])
    with jaxbackend.precision.policy("float64", "cpu").scope():
        value, pull = jax.vjp(jaxbackend.layers.relu_sum, jnp.asarray(first), jnp.asarray(second))
        ours = [np.asarray(each) for each in (value, *pull(jnp.ones(6)))]
    leaves = [torch.from_numpy(each).requires_grad_() for each in (first, second)]
    result = torchbackend.layers.relu_sum(*leaves)
    result.sum().backward()
    theirs = [result.detach().numpy(), *(leaf.grad.numpy() for leaf in leaves if leaf.grad is not None)]
    for found in (ours, theirs):
        same(found[0], np.array([0, 0, 1.5, 1e-9, np.nan, np.nan]))
        for gradient in found[1:]:
            np.testing.assert_array_equal(gradient[:-2], [0, 0, 1, 1])


def test_what_relu_s_gradient_keeps_is_an_activation_that_is_there_already():
    value, pull = jax.vjp(jaxbackend.gradients.relu, jnp.asarray(drawn(0, 7), jnp.float32))
    (kept,) = jax.tree.leaves(pull)
    np.testing.assert_array_equal(kept, value)


@pytest.mark.parametrize("shape", [SHAPE, (5, 3)])
def test_sums_and_gradients_taken_jointly_are_those_taken_one_by_one(shape: tuple[int, ...]):
    x, weights, factor, offset = drawn(0, *shape), drawn(1, *shape), drawn(2, shape[-1]), drawn(3, shape[-1])

    def total(*arrays: jax.Array, jointly: bool) -> jax.Array:
        return (jaxbackend.gradients.affine(*arrays, jointly=jointly) * weights).sum()

    with jaxbackend.precision.policy("float64", "cpu").scope():
        joint, apart = (
            jax.value_and_grad(partial(total, jointly=jointly), argnums=(0, 1, 2))(x, factor, offset)
            for jointly in (True, False)
        )
        squares = [jaxbackend.gradients.sums_of_squares(jnp.asarray(x), jointly=jointly) for jointly in (True, False)]
    jax.tree.map(same, joint, apart)
    jax.tree.map(same, *squares)


def test_layer_scale_multiplies_each_channel_by_its_factor():
    gamma, x, weight = drawn(1, 4), drawn(0, *SHAPE), drawn(2, *SHAPE)
    layer = Twin("LayerScale", 4, arrays={"gamma": gamma})
    same(layer(x), x * gamma)
    found = layer.gradients(x, weight)
    same(found["gamma"], (x * weight).sum((0, 1, 2)))
    same(found["input"], gamma * weight)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_label_smoothing_is_spread_over_all_classes_the_true_one_included(smoothing: float):
    logits, labels = 4 * drawn(0, 6, 10), np.array([0, 9, 3, 3, 7, 1], np.int32)
    targets = (1 - smoothing) * np.eye(10)[labels] + smoothing / 10
    logarithms = logits - special.logsumexp(logits, 1, keepdims=True)
    loss, gradient = -(targets * logarithms).sum(1).mean(), (np.exp(logarithms) - targets) / 6
    with jaxbackend.precision.policy("float64", "cpu").scope():
        objective = jax.value_and_grad(jaxbackend.losses.softmax_cross_entropy)
        ours, our_gradient = objective(jnp.asarray(logits), jnp.asarray(labels), smoothing)
    leaf = torch.from_numpy(logits).requires_grad_()
    theirs = torchbackend.losses.softmax_cross_entropy(leaf, torch.from_numpy(labels).long(), smoothing)
    theirs.backward()
    assert leaf.grad is not None
    for found in (np.asarray(ours), theirs.detach().numpy()):
        same(found, loss)
    for found in (np.asarray(our_gradient), leaf.grad.numpy()):
        same(found, gradient)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_loss_of_pixels_is_the_mean_over_all_of_them(smoothing: float, deterministic: bool):
    logits, labels = 4 * drawn(0, 2, 3, 5, 7), np.random.default_rng(1).integers(7, size=(2, 3, 5), dtype=np.int32)
    targets = (1 - smoothing) * np.eye(7)[labels] + smoothing / 7
    logarithms = logits - special.logsumexp(logits, -1, keepdims=True)
    expected = -(targets * logarithms).sum() / (2 * 3 * 5)
    with jaxbackend.precision.policy("float64", "cpu").scope():
        same(
            np.asarray(jaxbackend.losses.softmax_cross_entropy(jnp.asarray(logits), jnp.asarray(labels), smoothing)),
            expected,
        )
    torch.use_deterministic_algorithms(deterministic)
    theirs = torchbackend.losses.softmax_cross_entropy(
        torch.from_numpy(logits).permute(0, 3, 1, 2), torch.from_numpy(labels).long(), smoothing
    )
    torch.use_deterministic_algorithms(False)
    same(theirs.numpy(), expected)
