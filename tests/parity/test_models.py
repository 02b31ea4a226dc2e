"""The models match their papers: parameter counts, names and shapes, and where the image is halved."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import prod

import jax
import pytest
import torch

import jaxbackend.activations
import jaxbackend.models
import jaxbackend.precision
import torchbackend.activations
import torchbackend.models
import torchbackend.precision
from compare.base import workloads
from compare.base.workloads import ModelSpec
from tests.parity import twins

# digits-cnn by hand (10 * 32 + 513 * 10), cifar-resnet18 as in kuangliu's pytorch-cifar, unet as in milesial's
# Pytorch-UNet (31,037,633 for one class, 65 more for each other), the others as in torchvision.
PARAMETERS = {
    "digits-cnn": 5_450,
    "cifar-resnet18": 11_173_962,
    "resnet50": 25_557_032,
    "convnext-tiny": 28_589_128,
    "vgg16": 138_357_544,
    "mobilenet-v2": 3_504_872,
    "unet": 31_037_893,
}
BUFFERS = ("mean", "var")


@cache
def signature(backend: str, workload: str) -> dict[str, tuple[int, ...]]:
    return twins.BACKENDS[backend].open(replace(twins.spec(backend), workload=workload)).signature()


@pytest.mark.xdist_group("signatures")  # which one process opens once
@pytest.mark.parametrize("backend", twins.BOTH)
@pytest.mark.parametrize("workload", PARAMETERS)
def test_a_model_has_as_many_parameters_as_published(workload: str, backend: str):
    shapes = signature(backend, workload)
    found = sum(prod(shape) for name, shape in shapes.items() if name.rpartition(".")[2] not in BUFFERS)
    assert found == PARAMETERS[workload]


@pytest.mark.xdist_group("signatures")  # which one process opens once
@pytest.mark.parametrize("workload", PARAMETERS)
def test_both_backends_have_the_same_names_and_shapes_in_the_same_order(workload: str):
    assert list(signature("jax", workload).items()) == list(signature("torch", workload).items())


SIZES = {
    "cifar-resnet18": {"stem.conv": 17, "blocks.0.last.conv": 17, "blocks.1.first.conv": 9, "blocks.1.last.conv": 9},
    "resnet50": {  # v1.5: the 3x3 convolution of a bottleneck has the stride
        "stem.conv": 17,
        "pool": 9,
        "blocks.0.last.conv": 9,
        "blocks.1.first.conv": 9,
        "blocks.1.middle.conv": 5,
        "blocks.1.shortcut.conv": 5,
    },
    "convnext-tiny": {"stem": 8, "blocks.0.depthwise": 8, "blocks.1.conv": 4, "blocks.2.depthwise": 4},
    "vgg16": {"stages.0.convs.0": 33, "stages.0.pool": 16, "stages.1.convs.1": 16, "stages.1.pool": 8},
    "mobilenet-v2": {
        "stem.conv": 17,
        "blocks.0.depthwise.conv": 17,
        "blocks.1.expand.conv": 17,
        "blocks.1.depthwise.conv": 9,
        "blocks.1.project.conv": 9,
        "head.conv": 9,
    },
    "unet": {
        "down.0.last.conv": 33,
        "pool": 16,
        "down.1.first.conv": 16,
        "pool#2": 8,
        "down.2.last.conv": 8,
        "up.0.enlarge": 16,
        "up.0.join": 16,
        "up.1.enlarge": 32,
        "up.1.join": 33,  # a row and a column of zeros for those that pooling left out
        "pointwise": 33,
    },
}


def jax_sides(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    policy = jaxbackend.precision.policy("float64", "cpu")
    with policy.scope():
        model = jaxbackend.models.build(spec, policy)
        model.eval()

        def outputs(images: jax.Array) -> dict[str, jax.Array]:
            with jaxbackend.activations.record(model) as found:
                model(images)
            return found

        shapes = jax.eval_shape(outputs, jax.ShapeDtypeStruct((2, *spec.image), policy.compute_dtype))
    return {name: output.shape[1:-1] for name, output in shapes.items()}


def torch_sides(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    policy = torchbackend.precision.policy("float64", "cpu")
    model = torchbackend.models.build(spec, policy)
    height, width, channels = spec.image
    with torchbackend.activations.record(model) as found:
        model(torch.zeros(2, channels, height, width, dtype=policy.compute_dtype))
    return {name: tuple(output.shape[2:]) for name, output in found.items()}


@pytest.mark.parametrize("sides", [jax_sides, torch_sides], ids=["jax", "torch"])
@pytest.mark.parametrize("workload", SIZES)
def test_the_image_is_halved_where_the_paper_halves_it(
    workload: str, sides: Callable[[ModelSpec], dict[str, tuple[int, ...]]]
):
    model = workloads.get(workload).model
    size = 17 if workload == "cifar-resnet18" else 33
    found = sides(twins.narrowed(model, image=(size, size, 3), classes=5))
    assert {name: found[name] for name in SIZES[workload]} == {
        name: (side, side) for name, side in SIZES[workload].items()
    }


@pytest.mark.parametrize("workload", SIZES)
def test_both_backends_run_their_layers_in_the_same_order(workload: str):
    model = twins.narrowed(workloads.get(workload).model, image=(17, 17, 3), classes=5)
    assert list(jax_sides(model).items()) == list(torch_sides(model).items())
