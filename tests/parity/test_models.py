"""The models are those of their papers: parameter counts, names and shapes, and where the image is halved."""

from dataclasses import replace
from functools import cache
from math import prod

import numpy as np
import pytest

from compare import workloads
from compare.interface import Batch
from tests.parity import twins

# Of torchvision 0.20 (resnet50, convnext_tiny), of Kuangliu's pytorch-cifar (ResNet18), and by hand: 10 * 32 + 513 * 10.
PARAMETERS = {
    "digits-cnn": 5_450,
    "cifar-resnet18": 11_173_962,
    "resnet50": 25_557_032,
    "convnext-tiny": 28_589_128,
}
BUFFERS = ("mean", "var")


@cache
def signature(backend: str, workload: str) -> dict[str, tuple[int, ...]]:
    return twins.BACKENDS[backend].open(replace(twins.spec(backend), workload=workload)).signature()


@pytest.mark.parametrize("backend", twins.BOTH)
@pytest.mark.parametrize("workload", PARAMETERS)
def test_a_model_has_as_many_parameters_as_published(workload: str, backend: str):
    shapes = signature(backend, workload)
    found = sum(prod(shape) for name, shape in shapes.items() if name.rpartition(".")[2] not in BUFFERS)
    assert found == PARAMETERS[workload]


@pytest.mark.parametrize("workload", PARAMETERS)
def test_both_backends_have_the_same_names_and_shapes_in_the_same_order(workload: str):
    assert list(signature("jax", workload).items()) == list(signature("torch", workload).items())
