"""Layers and losses where the frameworks' conventions differ: both against NumPy, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import jaxbackend.losses
import jaxbackend.precision
import torchbackend.layers
import torchbackend.losses
from compare.base.interface import Array, Arrays
from tests.parity.layer_twins import Twin, same

RANDOM = np.random.default_rng(0)


def draw(*shape: int) -> Array:
    return RANDOM.standard_normal(shape)


@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_3x3_convolution_pads_one_row_on_every_side(size: int, stride: int):
    kernel, bias, images = draw(3, 3, 2, 4), draw(4), draw(2, size, size, 2)
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    places = range(0, size, stride)
    expected = np.stack(
        [
            np.stack([np.einsum("nhwi,hwio->no", padded[:, y : y + 3, x : x + 3], kernel) for x in places], 1)
            for y in places
        ],
        1,
    )
    layer = Twin("Conv", 2, 4, 3, stride=stride, padding=1, arrays={"kernel": kernel, "bias": bias})
    same(layer(images), expected + bias)


@pytest.mark.parametrize("size", [(8, 8), (7, 9), (3, 2)])
def test_max_pool_leaves_out_the_odd_row_and_column(size: tuple[int, int]):
    height, width = size
    images = draw(2, height, width, 3) - 5  # all negative: padding by zero would show
    whole = images[:, : height // 2 * 2, : width // 2 * 2]
    same(Twin("MaxPool", 2)(images), whole.reshape(2, height // 2, 2, width // 2, 2, 3).max((2, 4)))


def test_global_average_pool_is_the_mean_over_height_and_width():
    images = draw(2, 3, 5, 4)
    same(Twin("GlobalAveragePool")(images), images.mean((1, 2)))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_flatten_runs_over_height_then_width_then_channel(memory_format: torch.memory_format):
    images = draw(2, 3, 4, 5)
    same(Twin("Flatten")(images), images.reshape(2, 60))
    x = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(memory_format=memory_format)
    same(torchbackend.layers.Flatten()(x).numpy(), images.reshape(2, 60))


def test_a_dense_kernel_is_inputs_by_outputs():
    kernel, bias, x = draw(4, 4), draw(4), draw(3, 4)  # square: a transposed kernel would fit
    same(Twin("Dense", 4, 4, arrays={"kernel": kernel, "bias": bias})(x), x @ kernel + bias)


SHAPE = (3, 2, 5, 4)
COUNT = 3 * 2 * 5


def batch_norm(**options: float) -> tuple[Twin, Arrays]:
    arrays = {"scale": draw(4), "bias": draw(4), "mean": draw(4), "var": RANDOM.uniform(0.5, 2, 4)}
    return Twin("BatchNorm", 4, arrays=arrays, **options), arrays


def test_batch_norm_normalises_by_the_biased_variance():
    layer, arrays = batch_norm()
    x = 3 * draw(*SHAPE) + 1
    expected = (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + 1e-5)
    same(layer(x), expected * arrays["scale"] + arrays["bias"])


def test_batch_norm_adds_an_epsilon_of_1e_5_to_the_variance():
    layer, arrays = batch_norm()
    x = 1e-3 * draw(*SHAPE)  # a variance of 1e-6
    expected = (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + 1e-5)
    same(layer(x), expected * arrays["scale"] + arrays["bias"])


@pytest.mark.parametrize("momentum", [None, 0.3])
def test_batch_norm_momentum_weighs_the_new_batch_and_keeps_the_unbiased_variance(momentum: float | None):
    layer, arrays = batch_norm(**({} if momentum is None else {"momentum": momentum}))
    x, weight = 3 * draw(*SHAPE) + 1, momentum or 0.1
    layer(x)
    buffers = layer.buffers()
    same(buffers["mean"], (1 - weight) * arrays["mean"] + weight * x.mean((0, 1, 2)))
    same(buffers["var"], (1 - weight) * arrays["var"] + weight * x.var((0, 1, 2), ddof=1))


def test_batch_norm_in_evaluation_uses_and_keeps_the_running_statistics():
    layer, arrays = batch_norm()
    layer.eval()
    x = 3 * draw(*SHAPE) + 1
    expected = (x - arrays["mean"]) / np.sqrt(arrays["var"] + 1e-5)
    same(layer(x), expected * arrays["scale"] + arrays["bias"])
    for name, array in layer.buffers().items():
        np.testing.assert_array_equal(array, arrays[name])


def test_batch_norm_gradients_pass_through_the_batch_statistics():
    layer, _ = batch_norm()
    x, weight = draw(*SHAPE), draw(*SHAPE)
    with layer.policy.scope():
        graph, values = nnx.split(layer.jax)
        ours = np.asarray(jax.grad(lambda x: (nnx.merge(graph, values, copy=True)(x) * weight).sum())(jnp.asarray(x)))
    leaf = torch.from_numpy(x).requires_grad_()
    (layer.torch(leaf.permute(0, 3, 1, 2)) * torch.from_numpy(weight).permute(0, 3, 1, 2)).sum().backward()
    assert leaf.grad is not None
    same(ours, leaf.grad.numpy())
    np.testing.assert_allclose(ours.sum((0, 1, 2)), 0, atol=1e-12)  # the output does not depend on the mean


def test_the_loss_is_the_mean_over_the_batch():
    logits, labels = 4 * draw(6, 10), RANDOM.integers(10, size=6).astype(np.int32)
    with jaxbackend.precision.policy("float64", "cpu").scope():
        ours = np.asarray(jaxbackend.losses.softmax_cross_entropy(jnp.asarray(logits), jnp.asarray(labels)))
    theirs = torchbackend.losses.softmax_cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels).long())
    expected = np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(6), labels])
    same(ours, expected)
    same(theirs.numpy(), expected)
