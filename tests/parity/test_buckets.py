"""JAX's gradients are reduced over devices in buckets, as DistributedDataParallel's are."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, PartitionSpec

from jaxbackend import exchange, layers, precision
from jaxbackend.only import joint_gradients

TREE = {
    "kernel": jnp.arange(216, dtype=jnp.float32).reshape(3, 3, 4, 6),
    "dense": jnp.arange(24, dtype=jnp.float32).reshape(4, 6),
    "bias": [jnp.arange(6, dtype=jnp.float32), jnp.float32(0.5)],
}


MESH, WHOLE = AbstractMesh((2,), (exchange.AXIS,)), PartitionSpec()
HALVES = jax.tree.map(lambda array: jnp.stack([array, 3 * array]), TREE)  # the mean is twice as much


def _mapped(tree: Any) -> Any:
    return jax.vmap(partial(joint_gradients.average, axis=exchange.AXIS), axis_name=exchange.AXIS, out_axes=None)(tree)


def _within(tree: Any) -> Any:
    own = partial(joint_gradients.average, axis=exchange.AXIS)
    return jax.shard_map(own, mesh=MESH, in_specs=WHOLE, out_specs=WHOLE, check_vma=False)(tree)


def _split(tree: Any) -> Any:
    return joint_gradients.add_parts(tree, MESH)


def _count(program: Callable[[Any], Any], name: str, tree: Any) -> int:
    made = jax.make_jaxpr(lambda tree: program(tree))(tree)  # a new function, because JAX caches traces by function
    return str(made).count(f" {name}[")


@pytest.mark.parametrize(("size", "reductions"), [(2**20, 1), (80, 2), (4, 4)])
def test_arrays_are_reduced_together_up_to_the_size_of_a_bucket(
    monkeypatch: pytest.MonkeyPatch, size: int, reductions: int
):
    monkeypatch.setattr(joint_gradients, "_BUCKET_BYTES", size)
    jax.tree.map(lambda found, own: np.testing.assert_array_equal(found, 2 * own), _mapped(HALVES), TREE)
    assert _count(_within, "psum", TREE) == reductions
    assert _count(_split, "sharding_constraint", HALVES) == reductions


def test_parts_are_added_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax.lax, "with_sharding_constraint", lambda array, _: array)  # there is one device
    jax.tree.map(lambda found, own: np.testing.assert_array_equal(found, 4 * own), _split(HALVES), TREE)


def test_arrays_of_different_dtypes_are_reduced_apart():
    tree = TREE | {"last": jnp.zeros(2, jnp.float16)}
    assert _count(_within, "psum", tree) == 2
    found = _mapped(jax.tree.map(lambda array: jnp.stack([array, array]), tree))
    assert found["last"].dtype == jnp.float16


def test_one_device_puts_nothing_together():
    alone = AbstractMesh((1,), (exchange.AXIS,))
    whole = jax.tree.map(lambda array: array[None], TREE)
    assert _count(lambda tree: joint_gradients.add_parts(tree, alone), "concatenate", whole) == 0


@pytest.mark.parametrize(("devices", "exchanged"), [(1, 0), (2, 1)])
def test_one_device_s_moments_are_the_whole_s(devices: int, exchanged: int):
    def moments(wide: Any) -> Any:
        return exchange.moments(wide, lambda part: (part.mean(0), part.var(0)), synchronised=True)

    mesh = AbstractMesh((devices,), (exchange.AXIS,))
    split = jax.shard_map(moments, mesh=mesh, in_specs=WHOLE, out_specs=WHOLE, check_vma=False)
    assert _count(split, "all_gather", jnp.ones((4, 6))) == exchanged


@pytest.mark.parametrize(("devices", "joint"), [(1, 0), (2, 2)])
def test_a_batch_norm_over_devices_takes_its_two_sums_in_one_reduction(devices: int, joint: int):
    over = replace(precision.policy("float32", "cpu"), synchronised=True)
    graph, state = nnx.split(layers.BatchNorm(6, policy=over))

    def loss(images: Any) -> Any:
        return nnx.merge(graph, state, copy=True)(images).sum()

    mesh = AbstractMesh((devices,), (exchange.AXIS,))
    split = jax.shard_map(jax.grad(loss), mesh=mesh, in_specs=WHOLE, out_specs=WHOLE, check_vma=False)
    assert _count(split, "reduce", jnp.ones((4, 3, 3, 6))) == joint  # one forward, one backward
