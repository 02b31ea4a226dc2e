"""A step in pieces: it computes what the whole does, and compiles as much for many layers as for few."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbackend.only import split_programs
from jaxbackend.only.split_programs import Pieces

WIDTH = 6


def deep(layers: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the gradients of a chain of dense layers, each with an activation and a bias of its own, and its input."""
    drawn = np.random.default_rng(0)
    kernels = [jnp.asarray(drawn.normal(size=(WIDTH, WIDTH))) for _ in range(layers)]
    biases = [jnp.asarray(drawn.normal(size=WIDTH)) for _ in range(layers)]

    def loss(kernels: Any, biases: Any, x: jax.Array) -> jax.Array:
        for kernel, bias in zip(kernels, biases, strict=True):
            x = x + jax.nn.relu(x @ kernel + bias)
        return jnp.mean(x**2)

    def step(kernels: Any, biases: Any, x: jax.Array) -> Any:
        found, gradients = jax.value_and_grad(loss, argnums=(0, 1))(kernels, biases, x)
        return found, jax.tree.map(lambda a, g: a - 0.1 * g, (kernels, biases), gradients)

    return step, (kernels, biases, jnp.asarray(drawn.normal(size=(3, WIDTH))))


def test_pieces_compute_what_the_whole_does():
    step, arguments = deep(5)
    pieces = Pieces(step)
    for _ in range(2):  # compiled, and as compiled before
        found, expected = pieces(*arguments), jax.jit(step)(*arguments)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


def test_a_deep_step_has_as_many_programs_as_a_shallow_one():
    counts = []
    for layers in (5, 20):
        step, arguments = deep(layers)
        pieces = Pieces(step)
        pieces(*arguments)
        counts.append(len(pieces))
    assert counts[0] == counts[1] < 12


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (1e-5, 1.00001e-5), (2.0, 3.0)])
def test_pieces_that_differ_in_a_number_are_two_programs(one: float, other: float):
    def step(x: jax.Array) -> Any:
        return (x @ x) * one, (x @ x) * other

    pieces, x = Pieces(step), jnp.ones((2, 2))
    for value, factor in zip(pieces(x), (one, other), strict=True):
        np.testing.assert_array_equal(value, 2 * np.float32(factor) * np.ones((2, 2), np.float32))
        assert np.signbit(value).all() == np.signbit(factor)
    assert len(pieces) == 2


def test_pieces_that_differ_in_what_they_return_or_are_told_are_two_programs():
    def step(x: jax.Array) -> Any:
        inner = jnp.sin(x @ x)
        return jnp.sum(x @ x, axis=0), jnp.sum(x @ x, axis=1), inner, jnp.sin(x @ x) + 1

    pieces, x = Pieces(step), jnp.arange(4.0).reshape(2, 2)
    for found, expected in zip(pieces(x), step(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert len(pieces) == 4


def test_constants_of_a_step_are_not_taken_for_each_other():
    one, other = np.arange(4.0, dtype=np.float32), np.arange(4.0, dtype=np.float32) + 1

    def step(x: jax.Array) -> Any:
        return jax.jit(lambda y: y @ y + one)(x), jax.jit(lambda y: y @ y + other)(x)

    x = jnp.zeros((4, 4))
    for found, expected in zip(Pieces(step)(x), (one, other), strict=True):
        np.testing.assert_array_equal(found[0], expected)


def test_other_shapes_are_traced_anew_and_what_is_given_may_be_returned():
    pieces = Pieces(lambda x: (x, 2 * x, 1.0))
    for size in (2, 3):
        same, twice, one = pieces(jnp.ones(size))
        assert (same.shape, float(twice[0]), float(one)) == ((size,), 2.0, 1.0)


def test_what_none_needs_is_not_compiled():
    def step(x: jax.Array) -> jax.Array:
        jnp.sin(x @ x)
        return x @ x

    pieces = Pieces(step)
    pieces(jnp.ones((2, 2)))
    assert len(pieces) == 1


def test_compiler_options_are_left_out_where_xla_does_not_know_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(split_programs, "_CPU_OPTIONS", {"xla_cpu_no_such_option": True})
    split_programs._options.cache_clear()
    assert Pieces(jnp.sin)(jnp.ones(3)).shape == (3,)
    split_programs._options.cache_clear()


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(
    ("side", "size", "stride", "groups"), [(2, 3, 1, 1), (4, 3, 2, 1), (8, 1, 2, 1), (4, 7, 1, 64)]
)
def test_convolutions_that_are_written_for_a_cpu_compute_the_same(
    precision: str, side: int, size: int, stride: int, groups: int
):
    drawn, width = np.random.default_rng(1), 64
    with jax.enable_x64(True):
        images = jnp.asarray(drawn.normal(size=(2, side, side, width)), precision)
        kernel = jnp.asarray(drawn.normal(size=(size, size, width // groups, width)), precision)

        def step(images: jax.Array, kernel: jax.Array) -> Any:
            def loss(images: jax.Array, kernel: jax.Array) -> jax.Array:
                numbers = ("NHWC", "HWIO", "NHWC")
                y = jax.lax.conv_general_dilated(
                    images, kernel, (stride,) * 2, "SAME", dimension_numbers=numbers, feature_group_count=groups
                )
                return jnp.mean(y**2)

            return jax.value_and_grad(loss, argnums=(0, 1))(images, kernel)

        allowed = 1e-5 if precision == "float32" else 1e-14
        for found, expected in zip(
            jax.tree.leaves(Pieces(step)(images, kernel)), jax.tree.leaves(step(images, kernel)), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=0, atol=allowed * float(jnp.abs(expected).max()))
